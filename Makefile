PYTHON ?= python3
UV ?= uv
BIN := .venv/bin
DEMO := build/demo/my-training-project
PROJECT := {{cookiecutter.project_slug}}
# What is passed on to pytest, as in: make test ARGS="-k hostile"
ARGS ?=

# Python and the checkers would leave caches among the template's files, and cookiecutter would
# then copy them into every new project.
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/installed: requirements/dev.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements/dev.txt
	@touch $@

demo: .venv/installed ## Bake a project with the defaults, install it, train it, benchmark it
	rm -rf build/demo
	$(BIN)/cookiecutter . --no-input --default-config --output-dir build/demo
	$(MAKE) -C $(DEMO) install
	$(MAKE) -C $(DEMO) train ARGS="--data=digits"
	$(MAKE) -C $(DEMO) benchmark ARGS="--data=digits"

test: .venv/installed ## Run the template's tests, and those of the projects it generates
	$(BIN)/python -m pytest -p no:cacheprovider $(ARGS)

test-all: .venv/installed ## As make test, with the tests that take many minutes
	$(BIN)/python -m pytest -p no:cacheprovider -m "slow or not slow" $(ARGS)

# The package goes to ruff apart: named together, its folder's settings would be used for the whole
# unrendered project, and the tests there are not Python before they are rendered.
lint: .venv/installed ## Check the template's own code, and the package where it lies
	for code in . "$(PROJECT)/src"; do \
		$(BIN)/ruff check --no-cache "$$code" && \
		$(BIN)/ruff format --no-cache --check "$$code" || exit 1; \
	done
	$(BIN)/mypy --cache-dir=/dev/null tests

# Pins already in the files are kept; make lock ARGS=--upgrade takes the newest versions.
lock: .venv/installed ## Lock this project's and the generated project's dependencies (needs uv)
	$(UV) pip compile --group dev --universal --python-version 3.10 --generate-hashes \
		--no-annotate --no-header --no-emit-index-url --quiet \
		--output-file requirements/dev.txt $(ARGS)
	rm -rf build/lock
	$(BIN)/cookiecutter . --no-input --default-config --output-dir build/lock
	$(MAKE) -C build/lock/my-training-project lock ARGS="$(ARGS)"
	cp build/lock/my-training-project/requirements/*.txt "$(PROJECT)/requirements/"

clean: ## Delete what the targets made, the environment aside
	rm -rf build

PYTHON ?= python3
UV ?= uv
BIN := .venv/bin
DEMO := build/demo/my-training-project
BENCH := build/bench
PROJECT := {{cookiecutter.project_slug}}
# What is passed on to pytest, as in: make test ARGS="-k hostile"
ARGS ?=

# Python and the checkers would leave caches among the template's files, and cookiecutter would
# then copy them into every new project.
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench-input bench-staging bench-loop bench-checkpoint lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

# 3 GB of wheels, torch's CUDA libraries among them: its CPU build is not where pip looks. ffcv is
# tried apart, since it must be built; without it, the benchmark gives pip's reason.
$(BENCH)/.venv/installed: requirements/peers.txt
	$(PYTHON) -m venv --clear $(BENCH)/.venv
	$(BENCH)/.venv/bin/python -m pip install --quiet --require-hashes --no-deps \
		-r requirements/peers.txt
	sed 's/ *\\$$//; /--hash/d' requirements/peers.txt >$(BENCH)/pins.txt
	$(BENCH)/.venv/bin/python -m pip install --no-build-isolation --constraint $(BENCH)/pins.txt \
		ffcv==1.0.2 >$(BENCH)/ffcv.log 2>&1 || echo "ffcv does not install: $(BENCH)/ffcv.log"
	@touch $@

bench-input: $(BENCH)/.venv/installed ## Measure the input pipeline beside its peers (20 minutes)
	$(BENCH)/.venv/bin/python benchmarks/input.py $(ARGS)

$(BENCH)/.venv-staging/installed: requirements/staging.txt
	$(PYTHON) -m venv --clear $(BENCH)/.venv-staging
	$(BENCH)/.venv-staging/bin/python -m pip install --quiet --require-hashes --no-deps \
		-r requirements/staging.txt
	@touch $@

bench-staging: $(BENCH)/.venv-staging/installed ## Measure staging beside its peers (5 minutes)
	PATH="$(CURDIR)/$(BENCH)/.venv-staging/bin:$$PATH" \
		python benchmarks/staging.py --where=$(BENCH) --out=$(BENCH)/staging.json $(ARGS)

bench-loop: ## Measure the training loop beside Keras fit (8 minutes)
	test -x $(DEMO)/.venv/bin/python || $(MAKE) demo
	$(DEMO)/.venv/bin/python benchmarks/loop.py $(ARGS)

bench-checkpoint: ## Measure saving a gigabyte beside writing as much (1 minute)
	test -x $(DEMO)/.venv/bin/python || $(MAKE) demo
	mkdir -p $(BENCH)
	$(DEMO)/.venv/bin/python benchmarks/checkpoint.py --where=$(BENCH) $(ARGS)

# Pins already in the files are kept; make lock ARGS=--upgrade takes the newest versions.
lock: .venv/installed ## Lock this project's and the generated project's dependencies (needs uv)
	$(UV) pip compile --group dev --universal --python-version 3.10 --generate-hashes \
		--no-annotate --no-header --no-emit-index-url --quiet \
		--output-file requirements/dev.txt $(ARGS)
	rm -rf build/lock
	$(BIN)/cookiecutter . --no-input --default-config --output-dir build/lock
	$(MAKE) -C build/lock/my-training-project lock ARGS="$(ARGS)"
	cp build/lock/my-training-project/requirements/*.txt "$(PROJECT)/requirements/"
	grep -E '^(tensorflow-cpu|keras|numpy)==' "$(PROJECT)/requirements/cpu.txt" | \
		sed 's/ \\$$//' > build/lock/pins.txt
	$(UV) pip compile --group peers --universal --python-version 3.10 \
		--constraint build/lock/pins.txt --generate-hashes \
		--no-annotate --no-header --no-emit-index-url --quiet \
		--output-file requirements/peers.txt $(ARGS)
	$(UV) pip compile --group staging-peers --universal --python-version 3.10 --generate-hashes \
		--no-annotate --no-header --no-emit-index-url --quiet \
		--output-file requirements/staging.txt $(ARGS)

clean: ## Delete what the targets made, the environment aside
	rm -rf build

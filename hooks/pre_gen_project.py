"""Refuse names and choices that would make a broken project, before any file is written."""

import os
import sys

# Hooks run from the shared temporary folder: a stray json.py there must not be imported.
sys.path = [folder for folder in sys.path if folder != os.path.dirname(__file__)]

import json
import keyword
import re

# Dumped twice, as JSON in a Python literal: dumped once, an emoji would become two surrogates.
ANSWERS = json.loads({{cookiecutter | tojson | tojson}})
TEXTS = {
    "project_name": "My Training Project",
    "description": "Trains an image classifier.",
    "author": "Ada Lovelace",
}
CHOICES = {
    "license": ["MIT", "Apache-2.0", "BSD-3-Clause", "proprietary"],
    "data": ["digits", "synthetic", "tfds", "records", "folder"],
    "ci": ["github", "gitlab", "none"],
}
# Braces would be rendered again on an update; the rest reorder or break the line they stand in.
UNFIT = re.compile(r"\{[#%{]|[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# A project of one of these names would hide, or be hidden by, a package that it needs (first
# lines), one of its own folders, or a device of Windows (last line).
TAKEN = """absl array_record etils fsspec google grpc h5py importlib_resources jax keras mypy numpy
    nvidia pil pillow pip pkg_resources protobuf psutil pytest ruff setuptools tensorboard tfds
    tensorflow tensorflow_cpu tensorflow_datasets tf tf_keras torch tqdm wheel yaml
    build dist docs requirements runs slurm src test tests aux con nul prn""".split()
WORDS = [word.lower() for word in (*keyword.kwlist, *keyword.softkwlist, *sys.stdlib_module_names)]
SLUG_RULE = "a-z, 0-9, '-' and '_', a letter or a digit first and last"
PACKAGE_RULE = "a-z, 0-9 and '_', a letter first"


def refuse(variable, why, instead):
    shown = ascii(ANSWERS[variable])
    shown = shown if len(shown) <= 60 else shown[:56] + "...'"
    sys.exit(f"ERROR: {variable} {shown} {why}; for example {instead!a} would work")


def check_name(variable, joiner, rule, pattern, taken):
    words = re.sub("[^a-z0-9]+", joiner, ANSWERS[variable].lower())[:30].strip(joiner)
    instead = joiner.join(["project", words] if words else ["my", "project"])
    if not re.fullmatch(pattern, ANSWERS[variable]):
        refuse(variable, f"must be at most 40 of {rule}", instead)
    if ANSWERS[variable].replace("-", "_") in taken:
        refuse(variable, "is taken by Python, a package it needs or a folder", instead)


for variable, instead in TEXTS.items():
    if UNFIT.search(ANSWERS[variable]) or not 1 <= len(ANSWERS[variable].strip()) <= 200:
        refuse(variable, "must be 1 to 200 characters, no control character or braces", instead)
check_name("project_slug", "-", SLUG_RULE, "[a-z0-9]([a-z0-9_-]{0,38}[a-z0-9])?", TAKEN)
check_name("package_name", "_", PACKAGE_RULE, "[a-z][a-z0-9_]{0,39}", [*TAKEN, *WORDS])
for variable, allowed in CHOICES.items():
    if ANSWERS[variable] not in allowed:
        refuse(variable, f"is not one of {', '.join(allowed)}", allowed[0])

# make test, make bench: each sets up everything it needs in .venv, then does its job. A second run starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard csrc/*) $(wildcard csrc/targets/*)

.PHONY: test bench lint format sanitize wheel clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt CMakeLists.txt $(NATIVE) | $(VENV)/bin/python
	$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt --editable '.[test,bench]'
	@touch $@

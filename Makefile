# make compare, make test: each sets up all it needs in .venv, then does its job. A second run starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt
NATIVE := $(wildcard csrc/*) $(wildcard csrc/targets/*)
CPP := $(filter %.h %.cpp,$(NATIVE))

DATASET ?= digits

.PHONY: compare test bench pyg-suite docs notebooks readme lint format sanitize emulate wheel check-wheel clean

# The main job. What compare/$(DATASET) has already is shown again; remove that folder to measure anew.
compare: $(VENV)/installed
	$(BIN)/gossamer compare $(DATASET) --out compare/$(DATASET) --resume

# Two processes, since each test runs on one thread; a file's tests stay together, and with them what they share.
test: $(VENV)/installed lint
	$(BIN)/pytest -n 2 --dist loadfile

bench: $(VENV)/installed
	$(BIN)/python benchmarks/ops.py
	$(BIN)/python benchmarks/train.py

# PyG's own tests, from a checkout of the installed version, with every root module lightened: make pyg-suite
# PYG_TESTS=path/to/pytorch_geometric/test [RECIPE=tango] [TESTS="nn/conv loader"]. Fails if one passes plain only.
RECIPE ?= float32
pyg-suite: $(VENV)/installed
	@test -n "$(PYG_TESTS)" || { echo "PYG_TESTS must name the folder test of a checkout of PyG: make pyg-suite PYG_TESTS=..."; exit 2; }
	$(BIN)/python benchmarks/pyg_suite.py "$(PYG_TESTS)" $(TESTS) --recipe $(RECIPE)

# The site: README, docs/, an API reference from the docstrings, notebooks; opens from disk.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open build/site/index.html"

# The notebooks of the site, run anew: they are stored with their results.
notebooks: $(VENV)/installed
	PYTHONWARNINGS=ignore $(BIN)/python -m nbconvert --to notebook --execute --inplace --log-level WARN \
	    --ClearMetadataPreprocessor.enabled=True docs/notebooks/*.ipynb

readme: $(VENV)/installed
	$(BIN)/python benchmarks/tables.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/pytest -q -p no:cacheprovider tests/test_imports.py

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

# The kernel tests and the fuzzer on a build with the address and undefined-behaviour sanitizers. The pool is off, so
# that every tensor is a malloc of its own with poisoned surroundings; leaks are Python's business.
sanitize: $(VENV)/installed
	$(call build_native,sanitize,-C cmake.build-type=Debug -C cmake.define.GOSSAMER_SANITIZE=ON)
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 GOSSAMER_POOL_BYTES=0 PYTHONMALLOC=malloc \
	    $(call test_native,sanitize) -s \
	    tests/ops tests/codecs tests/graph/test_graph.py tests/graph/test_build.py --ignore tests/ops/test_compile.py

# The AVX-512 kernels on a processor that has AVX2 alone: every intrinsic a loop over its lanes (csrc/emulate_avx512.h).
emulate: $(VENV)/installed
	$(call build_native,emulate,-C cmake.define.GOSSAMER_EMULATE=ON)
	$(call test_native,emulate) -k avx512 tests/ops tests/codecs
	$(call test_native,emulate) tests/aggregate tests/engine tests/layers tests/saved_tensors

# Another build of the native module in build/$(1), and pytest on it.
define build_native
	rm -rf build/$(1) && mkdir -p build/$(1)
	$(BIN)/pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir build/$(1) -C build-dir=build/$(1)-cmake $(2) .
	cd build/$(1) && ../../$(BIN)/python -m zipfile -e *.whl .
endef
test_native = GOSSAMER_TEST_NATIVE=build/$(1)/gossamer PYTHONPATH=tests/plugins \
	    $(BIN)/python -m pytest -q -p native_from -p no:cacheprovider

# A wheel without any instruction-set specific file, what another architecture would get: built in isolation without
# torch, nothing bundled, and its kernels pass their tests.
check-wheel: $(VENV)/installed
	$(call build_native,baseline,-C cmake.define.GOSSAMER_BASELINE_ONLY=ON)
	$(BIN)/python tests/check_wheel.py build/baseline/*.whl
	env -u GOSSAMER_ISA $(call test_native,baseline) $(patsubst %,tests/ops/test_%.py,spmm pack quantize_rows int8_linear)

wheel: $(VENV)/installed
	$(BIN)/pip wheel --disable-pip-version-check --no-deps --wheel-dir dist .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python's venv module is missing: install python3-venv"; exit 1; }

$(VENV)/installed: pyproject.toml constraints.txt CMakeLists.txt $(NATIVE) | $(VENV)/bin/python
	@echo "Setting up $(VENV): a few minutes the first time, then not again until the C++ or the dependencies change."
	$(PIP) --editable '.[test,bench,docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist

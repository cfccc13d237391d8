# Every command of this project. `make demo` and `make test` need nothing but python3, a C++17 compiler and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CMAKE   = $(BIN)/cmake

# One set of versions for all of it.
export PIP_CONSTRAINT := $(CURDIR)/constraints/project.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# llama.cpp's threads wait asleep after a short spin: see python/token_trie_command/__init__.py, which has the same value.
ifeq ($(origin OMP_WAIT_POLICY),undefined)
export GOMP_SPINCOUNT ?= 1000
endif

SOURCES := $(shell find csrc include cmake python -type f -not -name '*.pyc') CMakeLists.txt pyproject.toml
STYLED   = $(shell find csrc include tests/cpp tests/fuzz tests/soak bench examples -name '*.h' -o -name '*.cpp' -o -name '*.c')
PIP     := $(BIN)/python -m pip install --quiet
TIDY     = $(BIN)/python $(BIN)/run-clang-tidy.py -clang-tidy-binary $(CURDIR)/$(BIN)/clang-tidy -quiet -j $$(nproc)
LLAMA    = -DLlama_PYTHON=$(CURDIR)/$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING
PRESET   = $(CMAKE) $(LLAMA) --preset

.PHONY: help demo test test-quick test-cpp test-python test-engines test-data test-clients sanitize fuzz soak compat device lint format bench docs wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed ## real agent requests, 30 actions, SmolLM2: token-trie beside a GBNF grammar
	@$(BIN)/token-trie demo

test: test-cpp test-python ## all tests, C++ and Python

test-quick: $(VENV)/test $(VENV)/installed ## the Python tests that need no model, within a minute
	@$(BIN)/python -m pytest --quick --numprocesses $(PROCESSES) $(PYTEST_ARGS)

test-cpp: $(VENV)/test ## GoogleTest
	@$(PRESET) release && $(CMAKE) --build --preset release && $(BIN)/ctest --preset release $(CTEST_ARGS)

# Each process opens its own models, about 3 GB; the tests of one file run in one process.
PROCESSES ?= 2
test-python: $(VENV)/test $(VENV)/installed ## pytest, in PROCESSES=2
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile $(PYTEST_ARGS)

test-engines: ## torch, transformers and vLLM, on the processor, in an environment of their own
test-data: ## Ray, Dask, datasets, Daft, Spark and the examples in Python, in an environment of their own
test-clients: $(VENV)/test $(VENV)/installed ## clients of OpenAI's and TypeSafe's APIs, as they are, in environments of their own
test-engines test-data test-clients:
	@scripts/test-env $(@:test-%=%) $(PYTEST_ARGS)

sanitize: $(VENV)/test ## the C++ tests under ASan + UBSan and under TSan
	@scripts/system-packages address
	@for preset in asan tsan; do \
	  $(PRESET) $$preset && $(CMAKE) --build --preset $$preset && $(BIN)/ctest --preset $$preset || exit 1; done

SECONDS ?= 60
fuzz: $(VENV)/test ## every fuzzer for SECONDS=60, under ASan + UBSan; calls of the C ABI under TSan too
	@scripts/system-packages fuzzer
	@for preset in fuzz fuzz-tsan; do $(PRESET) $$preset && $(CMAKE) --build --preset $$preset || exit 1; done
	@scripts/fuzz run $(SECONDS)

DECISIONS ?= 1000000
ROUNDS ?= 10000
soak: $(VENV)/test ## DECISIONS=1000000 random decisions and ROUNDS=10000 of streams on threads against the oracle; minutes
	@$(PRESET) release && $(CMAKE) --build --preset release --target token_trie_soak
	@build/release/tests/soak/token_trie_soak --decisions $(DECISIONS) --rounds $(ROUNDS) $(SOAK_ARGS)

# A copy a release, of what is committed, with an environment and builds of its own.
VERSIONS ?= 0.3.30 0.3.36
compat: ## all tests with each of VERSIONS of llama-cpp-python, which is compiled for each
	@for version in $(VERSIONS); do \
	  copy=build/compat/$$version; mkdir -p $$copy; git archive HEAD | tar -x -C $$copy || exit 1; \
	  sed "s/^llama-cpp-python==.*/llama-cpp-python==$$version/" constraints/project.txt > $$copy/constraints/project.txt; \
	  $(MAKE) -C $$copy test || exit 1; done

DEVICE ?= vulkan
device: ## tests of the choice on DEVICE=vulkan, cuda or metal; Vulkan needs no GPU: Mesa has a driver for the processor
	@LLAMA_CMAKE_ARGS="$(LLAMA_CMAKE_ARGS)" scripts/device $(DEVICE)

lint: $(VENV)/test $(VENV)/lint $(VENV)/installed ## ruff, mypy --strict, clang-format, clang-tidy, warnings as errors
	@scripts/keywords --check && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(STYLED)
	@$(PRESET) release
	@$(CMAKE) -S . -B build/bindings -G Ninja -DTOKEN_TRIE_PYTHON=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON $(LLAMA) \
	  -DPYBIND11_FINDPYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir)
	@$(TIDY) -p build/release '$(CURDIR)/(csrc|tests|bench)/'
	@$(TIDY) -p build/bindings '$(CURDIR)/csrc/bindings/'

format: $(VENV)/test $(VENV)/lint ## rewrite the sources in the project's style
	@scripts/keywords ; $(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@$(BIN)/clang-format -i $(STYLED)

bench: $(VENV)/bench $(VENV)/installed ## the benchmark beside GBNF, llguidance and xgrammar: table, JSON and PNG under build/
	@$(BIN)/python -m bench --mode sampler --output build/bench/sampler.json

docs: $(VENV)/docs $(VENV)/installed ## the site, with the reference, build/docs/site/index.html
	@mkdir -p build/docs
	@$(BIN)/python -m typer token_trie.cli utils docs --name token-trie | sed 's/^#/##/' > build/docs/command-line.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo "build/docs/site/index.html"

wheel: $(VENV)/wheel ## the wheel for all supported llama-cpp-python, into dist/, tested beside the oldest, a middle and the newest
	@$(BIN)/python scripts/wheel build
	@CMAKE_ARGS="$(LLAMA_CMAKE_ARGS)" $(BIN)/python scripts/wheel test $(RELEASES)

clean: ## remove all that these commands made
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Each stamp below is one step of the set-up; a step runs again when what it depends on has changed.

$(VENV)/bin/python:
	@scripts/system-packages c++ python-venv
	@$(PYTHON) -m venv $(VENV)

# Of llama-cpp-python, without its multimodal part, which nothing here uses. On processors with AMX, GCC 12 takes the stores
# that configure the tiles for dead (its _tile_loadconfig claims to read 8 bytes of the 64), and the process dies of an
# illegal instruction at the first prompt of a quantized model; -fno-dse keeps them. Others are compiled as ever.
LLAMA_CMAKE_ARGS ?= -DLLAVA_BUILD=OFF $(shell c++ -march=native -dM -E -x c++ /dev/null 2>/dev/null | grep -q __AMX_INT8__ && echo -DCMAKE_CXX_FLAGS=-fno-dse)

$(VENV)/build: pyproject.toml constraints/project.txt | $(VENV)/bin/python
	@echo "setting up $(VENV): llama-cpp-python is compiled the first time, which takes some minutes"
	@scripts/system-packages openssl python-dev
	@$(PIP) --upgrade pip && CMAKE_ARGS="$(LLAMA_CMAKE_ARGS)" $(PIP) --group build
	@touch $@

$(VENV)/installed: $(VENV)/build $(SOURCES)
	@echo "building token-trie"
	@$(PIP) --no-build-isolation '.[demo]'
	@touch $@

# Groups of pyproject.toml. xgrammar asks for triton and its GPU libraries, which it imports without.
$(VENV)/%: $(VENV)/build
	@[ $* != test ] || scripts/system-packages gtest
	@[ $* != test ] || scripts/system-packages browser || echo "without a browser, the tests that open pages in one are skipped"
	@$(PIP) --group $*
	@[ $* != bench ] || $(PIP) --no-deps xgrammar apache-tvm-ffi
	@touch $@

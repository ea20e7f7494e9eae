# make demo: the whole story on this machine. make test-all: every test. All make the environment in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-all test-fast explore setup lint types docs check sanitize reproduce model policies clean

demo: setup
	$(BIN)/shardwright demo

# Two files at once, or WORKERS=N, the longest first. One thread each: torch's threads wait for each other, for seconds where other programs
# use the cores. Sets have the same order every time.
LONGEST := $(patsubst %,tests/integration/test_%.py,docs benchmarks examples torchrec_steps ray_collect) \
  $(sort $(wildcard tests/unit/calibration/test_*.py tests/property/test_*.py))
WORKERS := 2
define tests_marked
	$(SAME) $(BIN)/python -m pytest -m $(1) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_OPTIONS) \
	  $(LONGEST) $(filter-out $(LONGEST),$(sort $(shell find tests -name 'test_*.py')))
endef
SAME := OMP_NUM_THREADS=1 PYTHONHASHSEED=0

test: setup
	$(call tests_marked,"not slow")

test-slow: setup
	$(call tests_marked,slow)

# Both in one run, which imports every file once.
test-all: setup
	$(call tests_marked,"slow or not slow")

# The inner loop: unit tests that measure no kernels, train no models and start no clusters, but for those marked slow.
PARTS_LEFT_OUT := calibration cluster experiments integrations measure cost/neuroshard learned
test-fast: setup
	$(SAME) $(BIN)/python -m pytest -q -n 2 -m "not slow" $(PARTS_LEFT_OUT:%=--ignore=tests/unit/%) tests/unit tests/golden

# Properties on examples of new seeds; says how to repeat what fails.
MINUTES := 10
explore: setup
	$(BIN)/python scripts/explore.py --minutes $(MINUTES) $(PYTEST_OPTIONS)

setup: $(READY)

# torch and FBGEMM come in matched pairs (pyproject.toml, extra "measure"); where a CPU build of torch is on the package index, pip takes it.
$(READY): pyproject.toml $(wildcard native/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Shardwright needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1): run make PYTHON=/path/to/python3.11"; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "Shardwright's engine is C++: install a compiler first (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install)"; exit 1; }
	@echo "Making the environment in $(VENV) (torch and FBGEMM are large; this takes a minute or more) …"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[measure,learn,torchrec,report,ray,docs,examples,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchrec==1.8.0
	@touch $(READY)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github

types: setup
	$(BIN)/mypy

# The documentation, in site/; a warning is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The engine's tests with address and undefined-behaviour sanitizers (GCC).
SANITIZED := build/sanitized
sanitize: setup
	$(BIN)/cmake -S native -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DSHARDWRIGHT_SANITIZE=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) > /dev/null
	$(BIN)/cmake --build $(SANITIZED)
	LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	  SHARDWRIGHT_ENGINE=$$(echo $(SANITIZED)/_engine*.so) $(BIN)/python -m pytest -q -n 0 -p tests.sanitized tests/unit/search/engine \
	  tests/unit/search/neuroshard/test_inner.py tests/unit/runtime/test_placement.py tests/unit/learned/priced/test_engine.py

check: test-all lint types docs sanitize

# The papers' experiments, run again; it goes on where it was stopped. make reproduce QUICK=--quick takes minutes, NAMES=... chooses.
NAMES := neuroshard-table neuroshard-production neuroshard-published dreamshard-tables autoshard-transfer flexshard-traffic ablations
reproduce: setup
	$(BIN)/python -m experiments $(QUICK) $(NAMES)

# The bundled models, from the published costs: a minute.
model: setup
	$(BIN)/shardwright train data/costs/*/fbgemm.parquet --allow-other-hardware -o src/shardwright/cost/models/cpu.safetensors
	$(BIN)/shardwright train data/costs/h100/rowwise_adagrad.parquet -o src/shardwright/cost/models/h100.safetensors

# The bundled policies, on the model of one processor and published GPUs: a quarter of an hour on one core; goes on where it was stopped.
# A trial with one round each: make policies LEARN="--rounds 1 --logs out/learned/trial out/learned/trial"
PROCESSOR := out/learned/amd-epyc-25-17.safetensors
policies: setup $(PROCESSOR)
	$(SAME) $(BIN)/python -m benchmarks.learn_policies --processor $(PROCESSOR) $(LEARN)

$(PROCESSOR): data/costs/amd-epyc-25-17/fbgemm.parquet | setup
	mkdir -p out/learned
	$(BIN)/shardwright train $< -o $@

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis

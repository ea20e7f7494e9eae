# make demo: the whole story on this machine. make test: every test. Both make the environment in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test setup lint types docs check reproduce model clean

demo: setup
	$(BIN)/shardwright demo

test: setup
	$(BIN)/python -m pytest $(PYTEST_OPTIONS)

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

types: setup
	$(BIN)/mypy

# The documentation, in site/; a warning is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: test lint types docs

# The papers' experiments, run again; it goes on where it was stopped. make reproduce QUICK=--quick takes minutes, NAMES=... chooses.
NAMES := neuroshard-table neuroshard-production dreamshard-tables autoshard-transfer flexshard-traffic ablations
reproduce: setup
	$(BIN)/shardwright reproduce $(QUICK) $(NAMES)

# The bundled CPU model, from nothing: an hour or two on a quiet machine, and it can be stopped and started again.
model: setup
	$(BIN)/shardwright collect -o samples/cpu --samples 12000 --sequence-share 0.15 $(foreach size,128 256 512 1024 2048 4096,--batch-size $(size))
	$(BIN)/shardwright train samples/cpu -o src/shardwright/cost/models/cpu.safetensors

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis

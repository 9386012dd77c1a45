# make run    set up everything, train on real digits, and write a report
# make test   set up everything, then lint, types and tests
# make lint   what the commit hook runs
# make docs   the documentation as a site: docs/build/index.html
PYTHON ?= python3
BIN := .venv/bin

# A machine without an NVIDIA GPU takes the CPU build of torch: from a folder of wheels where pip knows
# one, else from torch's own index.
WHEELS := $(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
ifneq ($(WHEELS),)
export UV_FIND_LINKS := $(WHEELS)
endif
ifeq ($(shell command -v nvidia-smi 2>/dev/null),)
TORCH := --constraint constraints-cpu.txt
ifeq ($(shell uname -s)$(wildcard $(addsuffix /torch-*.whl,$(WHEELS))),Linux)
TORCH += --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match
endif
endif
# Where Python may not keep bytecode, every start would compile torch anew: longer than all else that most tests do.
ifneq ($(PYTHONDONTWRITEBYTECODE),)
export UV_COMPILE_BYTECODE := 1
endif

.PHONY: run test lint docs
run: .venv/run
	$(BIN)/torchcaps train digits
	$(BIN)/torchcaps train digits-cnn
	$(BIN)/torchcaps train digits-pairs
	$(BIN)/torchcaps report runs/digits --beside runs/digits-cnn runs/digits-pairs

test: .venv/test lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

lint: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# A warning, a broken link or a missing name fails. Pages fetch nothing when they are read.
docs: .venv/docs
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet --builder html docs docs/build

# Each stamp is renewed when the dependencies change.
.venv/run: pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit("needs Python 3.11 or newer: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(TORCH) --editable '.[train]'
	touch $@

.venv/test: .venv/run
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(TORCH) --editable '.[train,dev]'
	touch $@

.venv/docs: .venv/run
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(TORCH) --editable '.[train,docs]'
	touch $@

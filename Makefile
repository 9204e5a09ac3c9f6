# `make demo` and `make test` are all one needs. Both build .venv on their first run and reuse it afterwards.
PYTHON      ?= python3
# Extra arguments for pip, e.g. PIP_ARGS="--index-url https://download.pytorch.org/whl/cu130"
PIP_ARGS    ?=
# Set CONSTRAINTS= (empty) to let pip choose the versions, for instance to keep a torch of your own.
CONSTRAINTS ?= constraints.txt
VENV        ?= .venv
BIN         := $(VENV)/bin

# $(call install,extras): an editable install with those extras, under the constraints.
install = $(BIN)/python -m pip install -q --disable-pip-version-check \
	$(if $(CONSTRAINTS),-c $(CONSTRAINTS)) $(PIP_ARGS) -e '.[$(1)]'

.PHONY: demo results test test-gpu test-slow check clean help

help:
	@echo "make demo       install, then the convergence study at size quick (3 to 5 minutes, 2 cores), and its page"
	@echo "make test       install with the test tools, then run the tests"
	@echo "make test-gpu   the tests that need a CUDA device"
	@echo "make test-slow  the tests that take minutes"
	@echo "make check      ruff and mypy over src"
	@echo "make results    pages, figures, tables and the README's table of claims, from the data under results/"
	@echo "make clean      remove the environment and caches"

demo: $(VENV)/.lab
	$(BIN)/semfocus run convergence --size quick --device cpu --out demo

results: $(VENV)/.lab
	$(BIN)/semfocus results build results

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest -m gpu

check: $(VENV)/.check
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "semfocus needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (choose another with PYTHON=...)")'
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: a second run installs nothing unless the requirements changed.
$(VENV)/.%: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "installing semfocus[$*] into $(VENV) (a minute or two, once)"
	@$(call install,$*)
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis

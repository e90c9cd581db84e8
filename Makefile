# Every target does its own set-up: the environment is made once and renewed when
# pyproject.toml or constraints.txt change. Choose the interpreter with `make PYTHON=python3.12 ...`.
# Tests with real workers have the machine for themselves; the others run in two processes.
# Each extra has an environment of its own for its tests, which borrows all else from .venv: so what FAST itself
# needs is never hidden by what an extra brings.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
EXTRAS := mpi

.PHONY: demo test test-long test-extras $(EXTRAS:%=test-%) bench check clean

demo: $(READY)
	$(BIN)/fast compare digits --strategies "allreduce,local_sgd,ssp,dpsgd,torus,gossip" --workers 4

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not long and not real" -n 2
	$(BIN)/pytest -m "not long and real"

test-long: $(READY)
	$(BIN)/pytest -m "long and not real" -n 2
	$(BIN)/pytest -m "long and real"

test-extras: $(EXTRAS:%=test-%)

$(EXTRAS:%=test-%): test-%: .venv-extras/%/.ready
	.venv-extras/$*/bin/python -m pytest tests/extras/test_$*.py

bench: $(READY)
	@set -e; for file in $(filter-out benchmarks/harness.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$file"; $(BIN)/python "$$file"; \
	done

check: test

# Results in runs/ are yours and stay.
clean:
	rm -rf .venv .venv-extras build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "FAST needs Python 3.11 or newer, and '$(PYTHON)' is missing or older." \
	       "Install one and name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up .venv (once; a few minutes, most of it torch)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

.venv-extras/%/.ready: $(READY)
	$(BIN)/python -m venv .venv-extras/$*
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.venv-extras/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	.venv-extras/$*/bin/python -m pip install -q -c constraints.txt -e ".[$*]"
	@touch $@

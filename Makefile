# Every target does its own set-up: the environment is made once and renewed when
# pyproject.toml or constraints.txt change. Choose the interpreter with `make PYTHON=python3.12 ...`.
# Tests with real workers have the machine for themselves; the others run in two processes.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-long bench check clean

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

bench: $(READY)
	@set -e; for file in $(filter-out benchmarks/harness.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$file"; $(BIN)/python "$$file"; \
	done

check: test

# Results in runs/ are yours and stay.
clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
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

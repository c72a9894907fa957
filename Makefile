# `make run` and `make test` set up .venv themselves; nothing else is needed but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check bench clean

run: $(STAMP)
	$(BIN)/kernbench run --bench gemm-single-pe --verify-data

test: $(STAMP)
	$(BIN)/pytest -n 2

check: $(STAMP)
	./check

bench: $(STAMP)
	$(BIN)/pytest benches -m ""

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kernbench needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis results

# `make run` and `make test` set up .venv themselves; nothing else is needed but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Both front ends, with what they pin, in an environment of their own. TORCH_INDEX: where else pip looks for PyTorch.
EXTRAS := .venv-extras
TORCH_INDEX ?=

# Where it is set, each worker and each process that a test starts compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all check bench docs dist extras test-extras test-extras-all clean

run: $(STAMP)
	$(BIN)/kernbench run --bench gemm-single-pe --verify-data

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile

# All combinations and sizes, the other cases of what is frozen, and forty times as many examples of each property.
test-all: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile -m "" --hypothesis-profile=thorough

check: $(STAMP)
	./check

bench: $(STAMP)
	$(BIN)/pytest benches -m ""

# The site of the documentation, with the reference made from docstrings: site/index.html.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build

$(VENV)/.docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

# The source archive, and the wheel built from it. The version is in src/kernbench/common/__init__.py.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kernbench needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

extras: $(EXTRAS)/.installed

# First the types of the front ends, checked against those of PyTorch, which .venv does not have.
test-extras: extras
	$(EXTRAS)/bin/mypy -p kernbench.frontends -p kernbench.kernels
	$(EXTRAS)/bin/pytest -n 2 tests/frontends tests/cli/test_cli_script.py

# The slow ones, too: random programs, products and seeds of the front ends; the examples of all pages.
test-extras-all: extras
	$(EXTRAS)/bin/pytest -n 2 tests/frontends tests/cli/test_cli_script.py tests/test_docs_examples.py -m "" --hypothesis-profile=thorough

$(EXTRAS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[dev,triton,torch]'
	touch $@

clean:
	rm -rf $(VENV) $(EXTRAS) site .pytest_cache .mypy_cache .ruff_cache .hypothesis dist results

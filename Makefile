# The two commands: `make ablate` runs the five ablations at smoke size, `make test` runs what CI runs.
# Both need only Python 3.11+ and make; they build their own .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: ablate test lint install clean

ablate: $(VENV)/installed
	$(BIN)/mmctl ablate --profile smoke

test: $(VENV)/installed-test lint
	$(BIN)/pytest -n auto

# The type checker reads the installed layout, where kernels/, ablations/ and plots/ lie inside mmctl.
lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typed && $(BIN)/pip install --quiet --no-deps --target build/typed .
	MYPYPATH=build/typed $(BIN)/mypy -p mmctl

install: $(VENV)/installed

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "mmctl needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e .
	touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache

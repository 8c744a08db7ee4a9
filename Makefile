PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install lint test test-fast fuzz demo docs site

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

install: $(VENV)/.installed

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

# Bytecode is kept, also where the environment says no: hundreds of processes of the tests read it.
test: install
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -q

# What is run at each save: rules between the packages, rows, formulas, losses, conditions, statistics.
FAST := tests/test_architecture.py tests/test_errors.py tests/test_recipe.py tests/test_settings.py \
	tests/backbones/test_kernels.py tests/cli/test_options.py tests/data/test_rows.py \
	tests/data/test_tasks.py tests/data/test_precision.py tests/encoder/test_formulas.py \
	tests/evaluation/test_statistics.py tests/retrieval/test_conditions.py tests/training/test_later_losses.py
test-fast: install
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -q $(FAST) -k "not killed_run and not goes_on_learning"

# Hostile inputs, drawn anew each time: make fuzz FUZZ=1000 for fewer.
FUZZ ?= 10000
fuzz: install
	PROMPTCLI_FUZZ=$(FUZZ) $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/fuzz

demo: install
	@sh examples/demo.sh $(BIN)/promptcli

docs: install
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_line.py

# The site, in site/: index.html opens in a browser, without a server.
site: docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

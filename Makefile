PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install lint test demo docs

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

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

demo: install
	@sh examples/demo.sh $(BIN)/promptcli

docs: install
	$(BIN)/python docs/generate_cli.py

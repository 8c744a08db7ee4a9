PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install lint test fuzz demo docs site

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

# Hostile inputs, drawn anew each time: make fuzz FUZZ=1000 for fewer.
FUZZ ?= 10000
fuzz: install
	PROMPTCLI_FUZZ=$(FUZZ) $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/fuzz tests/test_patterns.py

demo: install
	@sh examples/demo.sh $(BIN)/promptcli

docs: install
	$(BIN)/python docs/generate_cli.py

# The site, in site/: index.html opens in a browser, without a server.
site: docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

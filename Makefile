# `make demo` trains and renders Panel E at laptop scale; `make test` passes the tests. Both install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test unit lint engines clean

demo: $(VENV)/.base
	$(BIN)/tepo ablate panel-e --scale laptop --jobs 2

test: lint
	$(BIN)/python -m pytest -n 2 -q

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -q -m "not slow and not vllm and not deepspeed and not slurm and not chromium"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The real engines on CPU (vLLM's CPU build, DeepSpeed); --no-deps leaves out packages that only their CUDA builds need.
engines: $(VENV)/.engines

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: requirements/base.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/base.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/base.txt -r requirements/dev.txt
	touch $@

$(VENV)/.engines: requirements/engines-cpu.txt $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/engines-cpu.txt
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .mypy_cache

# `make demo` trains and renders Panel E at laptop scale; `make test` passes the tests. Both install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is written when a module is first imported: compiling all of them would take longer than everything else.
# Where an environment forbids that (containers do), every process would compile torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# uv where it is installed, which takes the CPU's build of torch on a machine without a GPU; pip where uv finds no index.
UV := $(shell command -v uv 2>/dev/null)
install = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python --torch-backend=auto $(1) || )$(PIP) $(1)
# studies that are on record; claims, which are a folder a batch, are one name
RECORDED := $(sort $(patsubst claims-%,claims,$(patsubst records/%/content,%,$(wildcard records/*/content))))
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test test-slow unit lint style types docs page suite engines peers perf clean

demo: $(VENV)/.base
	$(BIN)/tepo ablate panel-e --scale laptop --jobs 2
	@echo "its page: $(BIN)/tepo report panel-e && xdg-open report.html"

# What fails within seconds comes first; the suite builds the documentation. mypy takes a core for a minute when its cache
# is empty, so it runs beside the tests.
test: style
	$(MAKE) --no-print-directory -j 2 types suite

# File by file in order, the long integration tests first: all workers end at about the same time. One more than two
# cores, because tests of Slurm, servers and stopped ranks wait for most of their time.
PYTEST = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder -q

suite: $(VENV)/.dev
	$(PYTEST) -n 3 -m "not disaster"

# What stands in for real disasters: kills, races, lost ranks, full disks, hostile answers, Slurm, two machines; what a
# stranger does: the wheel, examples, a notebook, other trainers and harnesses; calibrations of memory, cost
# and tuning; the long ways through vLLM's server, DeepSpeed's stages and whole studies. Workers wait for most of it.
test-slow: $(VENV)/.dev
	$(PYTEST) -n 4 -m disaster

unit: $(VENV)/.dev
	$(PYTEST) -n 2 -m "not slow and not disaster and not vllm and not deepspeed and not verl and not slurm and not chromium"

lint: style types docs

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

# The documentation as a site: site/index.html opens in a browser without a server or a network.
docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict --quiet

# The page of what is on record, trained by nobody: a release keeps it, and `make docs` puts it into the site once it is there.
page: $(VENV)/.base
	mkdir -p dist
	$(BIN)/tepo report $(RECORDED) --records --out dist/results.html

# The real engines on CPU (vLLM's CPU build, DeepSpeed) and verl; --no-deps leaves out what only CUDA builds need.
engines: $(VENV)/.engines

# The trainers and kernels that perf/ measures beside ours, in an environment of their own.
peers: perf/.peers/.done

perf/.peers/.done: perf/peers.txt
	$(PYTHON) -m venv perf/.peers
	perf/.peers/bin/python -m pip install --quiet --disable-pip-version-check -r perf/peers.txt
	touch $@

# The short form of the benchmarks: fails when a ratio is beyond 1.6 times the baseline of this kind of CPU, twice.
perf: $(VENV)/.dev
	$(BIN)/python -m perf --short --check

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: requirements/base.txt pyproject.toml | $(VENV)/bin/python
	$(call install,-r requirements/base.txt)
	$(call install,--no-deps -e .)
	touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.base
	$(call install,-r requirements/base.txt -r requirements/dev.txt)
	touch $@

$(VENV)/.engines: requirements/engines-cpu.txt $(VENV)/.dev
	$(call install,--no-deps -r requirements/engines-cpu.txt)
	touch $@

clean:
	rm -rf $(VENV) runs site .pytest_cache .ruff_cache .mypy_cache

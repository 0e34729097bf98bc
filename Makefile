# Every target sets up the environment it needs, and leaves it alone until pyproject.toml or constraints.txt changes.

PYTHON ?= $(shell python3.11 -c '' >/dev/null 2>&1 && echo python3.11 || echo python3)
HARNESS ?= ../shared/bench/coupled_block.py
ARGS ?=
WORKERS ?= logical
MINUTES ?= 30

RUN = .venv/bin/python
BENCH_RUN = .venv-bench/bin/python
FLOORS_RUN = .venv-floors/bin/python
PACKAGE_RUN = .venv-package/bin/python
PYTHONS = 3.11 3.12 3.13
FLOORS_TESTS = tests/core tests/objectives tests/models/test_contract.py tests/models/test_hub.py \
    tests/analysis/test_derivative.py tests/analysis/test_spectrum.py tests/data/test_table.py tests/data/test_table_files.py \
    tests/training/test_record.py tests/cli/test_front.py
PIP_INSTALL = -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz floors pythons package check lint types format docs bench browser clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/installed ## Run the demonstration
	$(RUN) -m meq demo

test: .venv/installed ## Run the tests, on all cores; ARGS="-k rotation -x" goes to pytest, WORKERS=0 for one process
	$(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

fuzz: .venv/installed ## Meet the code with drawn inputs and faults for longer; MINUTES=30 is a rough total
	MEQ_FUZZ_MINUTES=$(MINUTES) $(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -m fuzz $(ARGS)

floors: .venv-floors/installed ## Run the engine's, the models' and the tables' tests on the oldest versions that are allowed
	$(FLOORS_RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(FLOORS_TESTS)

pythons: ## Run the same tests as floors, at the pinned versions, on every Python that is supported and present
	@for version in $(PYTHONS); do \
	    if ! python$$version -c '' >/dev/null 2>&1; then echo "python$$version: not here, so not run"; continue; fi; \
	    $(MAKE) --no-print-directory PYTHON=python$$version .venv-python$$version/installed || exit 1; \
	    echo "python$$version:"; \
	    .venv-python$$version/bin/python -m pytest --quiet --numprocesses $(WORKERS) --dist loadfile \
	        --no-loadscope-reorder $(FLOORS_TESTS) $(ARGS) || exit 1; \
	done

package: .venv-package/installed ## Build wheel and sdist, and try the wheel in an environment that has nothing else
	$(PACKAGE_RUN) tests/package.py dist

check: lint types test ## Everything a change has to pass

lint: .venv/installed ## Check style and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: .venv/installed ## Check types
	$(RUN) -m mypy

format: .venv/installed ## Mend style and formatting in place
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

docs: .venv/docs ## Build the documentation into build/docs; every warning is an error, and the tutorials are run
	$(RUN) -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs build/docs
	@echo "The documentation is in build/docs/index.html"

bench: .venv-bench/installed ## Measure engine, block and objective; ARGS="--rounds 5", HARNESS=path/to/coupled_block.py
	@test -f "$(HARNESS)" || \
	    { echo "No benchmark harness at $(HARNESS): pass HARNESS=path/to/coupled_block.py" >&2; exit 1; }
	$(BENCH_RUN) benchmarks/run.py --harness "$(HARNESS)" $(ARGS)
	$(BENCH_RUN) benchmarks/block_fusion.py $(ARGS)
	$(BENCH_RUN) benchmarks/objective_cost.py $(ARGS)
	$(BENCH_RUN) benchmarks/depth_cost.py $(ARGS)
	$(BENCH_RUN) benchmarks/less_work.py --harness "$(HARNESS)" $(ARGS)
	$(BENCH_RUN) benchmarks/scaling.py $(ARGS)
	$(BENCH_RUN) benchmarks/cnn_time.py $(ARGS)
	$(BENCH_RUN) benchmarks/feature_store.py
	$(BENCH_RUN) benchmarks/store_memory.py
	$(BENCH_RUN) benchmarks/fit_overhead.py
	$(BENCH_RUN) benchmarks/start_up.py
	$(BENCH_RUN) benchmarks/threads.py
	$(BENCH_RUN) benchmarks/int8.py $(ARGS)
	$(BENCH_RUN) benchmarks/report_time.py

browser: ## Install the browser that the browser tests drive
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
	    echo "chromium and chromedriver are installed"; \
	elif ! command -v apt-get >/dev/null; then \
	    echo "No apt-get here: install chromium and chromedriver yourself and put both on PATH" >&2; exit 1; \
	else \
	    if [ "$$(id -u)" -eq 0 ]; then as_root=; \
	    elif command -v sudo >/dev/null; then as_root=sudo; \
	    else echo "Installing chromium needs root or sudo: apt-get install chromium chromium-driver" >&2; exit 1; fi; \
	    $$as_root apt-get update && \
	    $$as_root env DEBIAN_FRONTEND=noninteractive \
	        apt-get install --yes --no-install-recommends chromium chromium-driver; \
	fi

clean: ## Remove the environments, caches and build outputs
	rm -rf .venv .venv-bench .venv-floors .venv-package .venv-python* .pytest_cache .mypy_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is touched last, so that an interrupted installation is taken up again by the next call.
.venv/installed: pyproject.toml constraints.txt
	$(call make_environment,.venv)
	$(RUN) $(PIP_INSTALL) --editable '.[dev]'
	@touch $@

# On top of .venv, which has torch already: tests and types do without, and only who asks for the documentation waits.
.venv/docs: .venv/installed
	$(RUN) $(PIP_INSTALL) --editable '.[docs]'
	@touch $@

# Apart from .venv: TorchDEQ is there to be measured against, and nothing else may come to lean on it.
.venv-bench/installed: pyproject.toml constraints.txt
	$(call make_environment,.venv-bench)
	$(BENCH_RUN) $(PIP_INSTALL) --editable '.[offline,onnx]' torchdeq==0.1.0
	@touch $@

# Without the extras, whose tests are not among those that run here.
.venv-floors/installed: pyproject.toml constraints.txt tests/floors.py
	$(call make_environment,.venv-floors)
	$(PYTHON) tests/floors.py pyproject.toml constraints.txt > .venv-floors/floors.txt
	$(FLOORS_RUN) -m pip --disable-pip-version-check install --quiet --constraint .venv-floors/floors.txt \
	    --editable . beartype hypothesis pytest pytest-xdist
	@touch $@

# Without the extras, as above.
.venv-python%/installed: pyproject.toml constraints.txt
	$(call make_environment,.venv-python$*)
	.venv-python$*/bin/python $(PIP_INSTALL) --editable . beartype hypothesis pytest pytest-xdist
	@touch $@

# What builds the package, and nothing of what it needs: that is installed into an environment made anew every time.
.venv-package/installed: constraints.txt
	$(call make_environment,.venv-package)
	$(PACKAGE_RUN) $(PIP_INSTALL) build hatchling
	@touch $@

define make_environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
    { echo "meq needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=path/to/python" >&2; exit 1; }
@echo "Setting up $(1) with $(PYTHON); this takes some minutes, once"
@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
endef

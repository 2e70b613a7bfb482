# gpuops: make help lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
SANDBOX := .sandbox
PLAYBOOK ?= playbooks/local.yaml
PIP    := $(BIN)/pip --disable-pip-version-check
GPUOPS := $(BIN)/gpuops

.DEFAULT_GOAL := help
.PHONY: help up down install test test-slow lint format docs bench-control bench-chaos clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(STAMP) ## serve the embedded default: real SGLang on CPU, deployed over a throwaway sshd on loopback
	@$(GPUOPS) sandbox start --dir $(SANDBOX)
	@$(GPUOPS) up $(PLAYBOOK)

down: ## stop the server and the sshd of `make up`
	@if [ -e $(SANDBOX)/ssh_config ]; then $(GPUOPS) down -p $(PLAYBOOK); $(GPUOPS) sandbox stop --dir $(SANDBOX); else echo "nothing to stop: there is no $(SANDBOX)"; fi

install: $(STAMP) ## make .venv with gpuops in it

test: $(DEV) lint ## install what the tests need, and run them (about 12 minutes; installs openssh-server and rsync when root)
	$(BIN)/pytest -m "not slow" -n 4 tests/unit tests/agent tests/ssh tests/chaos
	$(BIN)/pytest -m "not slow" tests/engine

test-slow: $(DEV) ## the long tests: faults of the real engine in the middle of a rollout, and 30 chaos seeds
	$(BIN)/pytest -m slow

lint: $(DEV) ## ruff, format check, mypy --strict on gpuops/ and remote/
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(DEV) ## format the sources
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP) ## generate the playbook reference from its models
	$(BIN)/python -m gpuops.playbook.reference > docs/playbook.md

bench-control: $(DEV) ## what gpuops itself costs: start-up, a status round trip, a push, a rollout
	$(BIN)/python -m benchmarks.control

bench-chaos: $(DEV) ## 300 rollouts with one fault each, four at a time; all of them have to end well (about 15 minutes; all faults only as root)
	$(BIN)/python -m benchmarks.chaos

clean: ## remove .venv and caches (make down first)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

# The stamps: an installation is repeated when the project's metadata changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "gpuops needs Python 3.10 or newer; set PYTHON=/path/to/python3.x" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: on Debian, apt install python3-venv" >&2; exit 1; }
	@echo "installing gpuops into $(VENV) (about 15 MB to download)"
	@$(PIP) install --quiet -e .
	@touch $@

$(DEV): $(STAMP)
	@echo "installing the development tools into $(VENV)"
	@$(PIP) install --quiet -e '.[dev]'
	@touch $@

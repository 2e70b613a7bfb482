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

# The kernels' tests need torch and triton, which gpuops itself does not: an environment of their own.
KVENV    := .venv-kernels
KSTAMP   := $(KVENV)/.installed
KPYTHON   = cd kernels && PYTHONPATH=. $(NICE) ../$(KVENV)/bin/python
# What to do with a test that fails: nothing more, unless the caller says (CI: --reruns 1).
RERUN   ?=
# On a machine with a card: the Python that has torch and triton (the engine's).
GPU_PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help up down install test test-engine engine-now test-kernels kernels-interp kernels-rest test-slow test-gpu lint format docs gate gate-write bench-control bench-builds bench-diagnose bench-chaos bench-kernels bench-measure bench-profile clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(STAMP) ## serve the embedded default: real SGLang on CPU, deployed over a throwaway sshd on loopback
	@$(GPUOPS) sandbox start --dir $(SANDBOX)
	@$(GPUOPS) up $(PLAYBOOK)

down: ## stop the server and the sshd of `make up`
	@if [ -e $(SANDBOX)/ssh_config ]; then $(GPUOPS) down -p $(PLAYBOOK); $(GPUOPS) sandbox stop --dir $(SANDBOX); else echo "nothing to stop: there is no $(SANDBOX)"; fi

install: $(STAMP) ## make .venv with gpuops in it

test: $(DEV) $(KSTAMP) lint ## install what the tests need, and run them (20 to 25 minutes on two cores; installs openssh-server and rsync when root)
	$(BIN)/pytest $(RERUN) -m "not slow" -n 6 tests/unit tests/agent tests/ssh tests/chaos
	@# The engine leaves a core free most of the time; the kernels take it, and yield it again.
	@$(MAKE) --no-print-directory -j3 --output-sync=target NICE="nice -n 19" test-engine gate kernels-interp kernels-rest

# By a make of its own, which shows the tests as they run: --output-sync keeps a target's output until its end, here for ten minutes.
test-engine: $(DEV) ## the real engine: up, swap, restore, measure
	@$(MAKE) --no-print-directory --output-sync=none engine-now

engine-now:
	$(BIN)/pytest $(RERUN) -m "not slow" tests/engine

test-kernels: $(KSTAMP) ## the kernels without a GPU: interpreter, capture safety, compile cache, plugin, and the gate (several at a time)
	@$(MAKE) --no-print-directory -j3 --output-sync=target gate kernels-interp kernels-rest

kernels-interp: $(KSTAMP)
	$(KPYTHON) -m pytest tests/interp

kernels-rest: $(KSTAMP)
	$(KPYTHON) -m pytest tests/compiled tests/plugin tests/aot tests/lab

test-gpu: ## the kernels on this machine's card, against float64 references (GPU_PYTHON has torch, triton and pytest)
	cd kernels && PYTHONPATH=. $(GPU_PYTHON) -m pytest tests/gpu

test-slow: $(DEV) ## the long tests: faults and A/B launches of the real engine, the plugin in it, 30 chaos seeds, a report in a browser (installs Chromium when root)
	$(BIN)/pytest $(RERUN) -m slow -n 4 tests/unit tests/agent tests/ssh tests/chaos
	$(BIN)/pytest $(RERUN) -m slow tests/engine

lint: $(DEV) ## ruff, format check, mypy --strict on gpuops/ and remote/
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(DEV) ## format the sources
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP) ## generate the references of playbooks and trials from their models
	$(BIN)/python -m gpuops.playbook.reference > docs/playbook.md
	$(BIN)/python -m gpuops.trials.reference > docs/trials.md

gate: $(KSTAMP) ## compile every kernel for sm_120 and sm_90 without a GPU; check the machine code, and compare it with the record
	$(KPYTHON) -m gpuops_kernels.gate

gate-write: $(KSTAMP) ## the same, and replace the record of resources
	$(KPYTHON) -m gpuops_kernels.gate --write

bench-kernels: ## the kernels on this machine's card against what the engine ships, in one run; HEADS=32: what a rank of tp 2 meets
	cd kernels && PYTHONPATH=. $(GPU_PYTHON) -m gpuops_kernels.bench $(if $(HEADS),--heads $(HEADS))

bench-builds: $(DEV) ## what builds cost: bytes on the link for one changed wheel, the same build from two clean clones, the outage of a swap
	$(BIN)/python -m benchmarks.builds

bench-control: $(DEV) ## what gpuops itself costs: start-up, a status round trip, a push, a rollout
	$(BIN)/python -m benchmarks.control

bench-diagnose: $(DEV) ## how well failures are told from their logs: samples, near misses, recorded and healthy logs
	$(BIN)/python -m benchmarks.diagnose

bench-chaos: $(DEV) ## 300 rollouts with one fault each, four at a time; all of them have to end well (about 15 minutes; all faults only as root)
	$(BIN)/python -m benchmarks.chaos

bench-profile: $(DEV) ## what reading a profiler's trace of 200 MB costs
	$(BIN)/python -m benchmarks.profile

bench-measure: $(DEV) ## whether measurements can be believed: faults, clean runs, verdicts, the load path's cost; REAL=1: also A/B launches of the engine
	$(BIN)/python -m benchmarks.measure $(if $(REAL),--real)

clean: ## remove .venv and caches (make down first)
	rm -rf $(VENV) $(KVENV) .mypy_cache .ruff_cache .pytest_cache

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

$(KSTAMP): kernels/requirements-test.txt
	@$(PYTHON) -m venv $(KVENV)
	@echo "installing torch and triton into $(KVENV) (about 400 MB to download)"
	@$(KVENV)/bin/pip --disable-pip-version-check install --quiet -r kernels/requirements-test.txt
	@touch $@

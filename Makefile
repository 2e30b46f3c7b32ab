# Every target sets up what it needs, in .venv, and does so again only when pyproject.toml or constraints.txt changed.
#   make train                     PPO on CartPole-v1, with its learning curve as a picture
#   make test PYTHON=python3.12 VENV=.venv312     another Python beside the first

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: setup train test test-slow lint format docs bench browser constraints wheel clean

PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# More than cores: tests wait for processes a good part of the time.
JOBS ?= 4

# -qq leaves errors only. The extras differ by a factor of two in time, so `make train` gets the small set.
PIP_INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt

train: $(VENV)/.train
	@run=runs/cartpole-$$(date +%Y%m%d-%H%M%S); \
	$(BIN)/runnel train ppo CartPole-v1 --stop-at-return 475 --steps 1000000 --seed 1 --run-dir "$$run"; \
	curve=$$($(BIN)/runnel plot "$$run" --out "$$run/curve.png"); \
	echo "learning curve: $$curve"

# Tests spend their time compiling programs that then run for a moment: these are not optimised, and kept for other tests.
# The emitters of fusions make programs faster, and take two thirds of the time to compile them.
COMPILE_LESS := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
	--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters" \
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/$(VENV)/xla JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

test: lint docs browser
	$(COMPILE_LESS) $(BIN)/pytest -n $(JOBS)

# A browser for tests of the live page, and the shells beside bash for tests of completion. Where they are missing, those
# tests are skipped, and pytest says so.
browser:
	@missing=; \
	command -v chromium chromium-browser google-chrome >/dev/null || missing=" chromium"; \
	for shell in zsh fish; do command -v $$shell >/dev/null || missing="$$missing $$shell"; done; \
	[ -z "$$missing" ] || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	echo "installing$$missing, for tests of the live page and of completion" && \
	(apt-get update && apt-get install -y --no-install-recommends $$missing) >/dev/null 2>&1; } || \
	echo "missing, and cannot be installed here:$$missing; tests of the live page or of completion that need them are skipped"

test-slow: $(VENV)/.dev
	$(COMPILE_LESS) $(BIN)/pytest -n $(JOBS) -m "slow and not learns" --timeout 1800
	$(BIN)/pytest -m "slow and learns" --timeout 3600

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/embed.py

# Not --quiet: it hides warnings from --strict, which then passes whatever is broken.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# `make bench BENCH=learning` takes hours, and is not among them.
BENCH ?= $(sort $(patsubst benchmarks/%.py,%,$(filter-out benchmarks/_% benchmarks/learning.py,$(wildcard benchmarks/*.py))))
bench: $(VENV)/.bench
	$(BIN)/runnel bench $(BENCH)

setup: $(VENV)/.dev

# Needs every interpreter that constraints.txt speaks of.
PYTHONS ?= python3.11 python3.12 python3.13
constraints:
	$(PYTHON) tools/constraints.py $(PYTHONS)

# What would be published, in an empty environment. WHEEL="--newest --python python3.13" tries another.
WHEEL ?=
wheel: $(VENV)/.dev
	$(BIN)/python tools/try_wheel.py $(WHEEL)

clean:
	rm -rf $(VENV) site build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH: name one of 3.11 or later, as in \`make PYTHON=python3.12\`" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(REQUIREMENTS) | $(BIN)/pip
	@echo "installing runnel into $(VENV) (about a minute)"
	@$(PIP_INSTALL) -e ".[classic]"
	@touch $@

$(VENV)/.dev: $(REQUIREMENTS) | $(BIN)/pip
	@echo "installing runnel and what its development needs into $(VENV) (one or two minutes)"
	@$(PIP_INSTALL) -e ".[dev]"
	@touch $(VENV)/.train $@

$(VENV)/.bench: $(REQUIREMENTS) | $(BIN)/pip
	@echo "installing runnel and the peers it is measured against into $(VENV) (a few minutes)"
	@$(PIP_INSTALL) -e ".[bench]"
	@touch $(VENV)/.train $@

# Two commands on a fresh Debian or Ubuntu: `make demo` and `make test`. Both set up whatever is missing and can be repeated.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.installed
UV ?= uv
# Extra arguments for pytest: make test PYTEST_ARGS='-k grants -x'
PYTEST_ARGS ?=

.PHONY: help venv setup demo test test-long test-rabbitmq4 check audit sbom bench chaos lock clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The stamp lies inside the environment, so deleting .venv is all it takes to begin again.
$(STAMP): requirements.lock pyproject.toml
	@deploy/setup.sh venv
	@touch $@

venv: $(STAMP)  ## .venv from requirements.lock, and this package in it (editable)

# No stamp: looking takes a moment, and a stamp would not notice that a system package was removed.
setup: venv  ## venv, and RabbitMQ and Java where they are missing
	@deploy/setup.sh system

demo: setup  ## the main job end to end on a private local network
	@$(BIN)/tdn demo

# Unit tests on all cores; then all that has a network or a cluster, in groups that share one (tests/conftest.py), four at a time, since each
# waits now and then; then the one that measures patience, alone.
PATIENCE := tests/broker/test_query_limits.py
test: setup  ## the whole test suite, in its everyday form
	@deploy/setup.sh checks
ifeq ($(strip $(PYTEST_ARGS)),)
	$(BIN)/pytest -q -n auto --dist worksteal tests/unit
	$(BIN)/pytest -q -n 4 --dist loadgroup --no-loadscope-reorder -m 'not slow' --ignore tests/unit --ignore $(PATIENCE) tests
	$(BIN)/pytest -q $(PATIENCE)
else
	$(BIN)/pytest -q $(PYTEST_ARGS)
endif

test-long: setup  ## what is drawn at random (models, fuzzing, queries of bulk discovery), many times as much of it; and what is slow
	TDN_TESTS=long $(BIN)/pytest -q -n auto --dist worksteal --timeout=3600 $(PYTEST_ARGS) tests/unit
	TDN_TESTS=long $(BIN)/pytest -q --timeout=3600 $(PYTEST_ARGS) tests/spark
	$(BIN)/pytest -q -m slow $(PYTEST_ARGS) tests/broker tests/cli

test-rabbitmq4: setup  ## what RabbitMQ has a part in, on the RabbitMQ 4 of Debian 13 (needs root and debootstrap)
	tests/rabbitmq4.sh $(PYTEST_ARGS)

check: venv  ## linters, types, and what can be audited offline
	$(BIN)/ruff check .
	$(BIN)/mypy --strict tdn entity_client spark deploy bench tests/chaos tests/redteam tests/live.py
	$(BIN)/python -m deploy.supply.audit --offline
	$(BIN)/python -m deploy.supply.sbom --check

audit: venv  ## what we install is what we chose; known vulnerabilities where pip-audit reaches its service
	$(BIN)/python -m deploy.supply.audit

sbom: venv  ## sbom.cdx.json, the bill of materials (CycloneDX), from requirements.lock
	$(BIN)/python -m deploy.supply.sbom

bench: setup  ## measurements against the bare limit
	$(BIN)/python -m bench

chaos: setup  ## the long form of the fault tests
	@deploy/setup.sh chaos
	TDN_CHAOS=long $(BIN)/pytest -q --timeout=3600 $(PYTEST_ARGS) tests/chaos tests/broker/test_cluster.py tests/broker/test_heads.py

# Names no index and no host, so that it installs from whatever registry pip is set up for. Afterwards: `make sbom`, and `make audit` says
# whose licence was not looked at yet.
lock:  ## requirements.lock from requirements.in (needs uv)
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command 'make lock' $(LOCK_ARGS) requirements.in -o requirements.lock

clean:  ## .venv and caches (never a home with data)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

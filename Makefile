# labkit: `make report` measures and reports, `make test` tests. Both require only make and
# Python 3.11 or later.
#
#   PROFILE=tiny|quick|paper   how much is measured: pilots, verdicts, as the papers did
#   NEW=1                      start another campaign instead of resuming
#   LABKIT_NO_APT=1            list missing host tools, do not install them
#   PYTHON=python3.12          the interpreter of the environment

PROFILE ?= tiny
BIN := .venv/bin
LOCK_FLAGS := --universal --fork-strategy fewest --python-version 3.11 --extra test --extra setup --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header

.DEFAULT_GOAL := help
.PHONY: help setup setup-test report test bench simulate lint lock clean

help: ## List the targets
	@echo 'labkit: a lab for measuring container performance'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  make report PROFILE=quick        verdicts instead of pilots (about an hour and a half)'
	@echo '  make report PROFILE=paper NEW=1  another profile, another campaign'

setup: ## Create .venv from the lock; as root on Debian or Ubuntu also install host tools
	@scripts/setup.sh

setup-test:
	@scripts/setup.sh --test

report: setup ## Measure the studies, analyse them, write reports/index.html
	$(BIN)/labkit report --measure --profile $(PROFILE) $(if $(NEW),--new)

test: setup-test ## Run every test, also on real engines and in a browser
	$(BIN)/labkit clean
	scripts/test.sh

bench: setup ## Measure the overhead of the harness, and how the analysis scales
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/explore.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/harness.py

simulate: setup ## Simulate experiments: false positives, power, coverage (quick: ARGS=--quick)
	$(BIN)/python benchmarks/simulate.py $(ARGS)

lint: setup ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock: setup ## Resolve pyproject.toml into requirements.lock
	scripts/uv.sh pip compile pyproject.toml $(LOCK_FLAGS) --upgrade --quiet -o requirements.lock.new
	{ sed -n '/^#/p;/^[^#]/q' requirements.lock; cat requirements.lock.new; } > requirements.lock.tmp
	mv requirements.lock.tmp requirements.lock
	rm requirements.lock.new

clean: ## Remove what a dead campaign left on this machine, caches and the environment
	@if [ -x $(BIN)/labkit ]; then $(BIN)/labkit clean; fi
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find labkit tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

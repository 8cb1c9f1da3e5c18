# labkit: `make report` measures and reports, `make test` tests. Both require only make and
# Python 3.11 or later.
#
#   PROFILE=ask                every study: its headlines in minutes (tiny: a pilot; quick: for
#                              answers; decide: for verdicts on the claims; paper: as the papers did)
#   NEW=1                      start another campaign instead of resuming
#   LABKIT_NO_APT=1            list missing host tools, do not install them
#   PYTHON=python3.12          the interpreter of the environment

PROFILE ?= ask
BIN := .venv/bin
LOCK := scripts/uv.sh pip compile pyproject.toml --universal --fork-strategy fewest --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --quiet
# The lock of the tools of tests and documentation has only what requirements.lock does not.
HELD = $$(sed -n 's/^\([^ =]*\)==.*/--no-emit-package \1/p' requirements.lock)

.DEFAULT_GOAL := help
.PHONY: help setup setup-test report test docs bench simulate chaos lint lock clean

help: ## List the targets
	@echo 'labkit: a lab for measuring container performance'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  make report PROFILE=quick        more conditions of every study, in about two hours'
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

docs: setup-test ## Build the documentation: docs/_build/html/index.html
	$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo docs/_build/html/index.html

bench: setup ## Measure the overhead of the harness
	$(BIN)/python benchmarks/harness.py

simulate: setup ## Simulate claims: how often a word is wrong (quick: ARGS=--quick)
	$(BIN)/python benchmarks/simulate.py $(ARGS)

chaos: setup ## Kill campaigns at random moments, as root (ARGS="--seed 3 --kills 100")
	$(BIN)/python benchmarks/chaos.py $(ARGS)

lint: setup-test ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock: setup ## Resolve pyproject.toml into requirements.lock and requirements-test.lock
	$(LOCK) --extra explore --extra fleet --extra setup -o requirements.lock.new
	{ sed -n '/^#/p;/^[^#]/q' requirements.lock; cat requirements.lock.new; } > requirements.lock.tmp
	mv requirements.lock.tmp requirements.lock
	$(LOCK) --extra test --extra docs -c requirements.lock $(HELD) -o requirements.lock.new
	{ sed -n '/^#/p;/^[^#]/q' requirements-test.lock; cat requirements.lock.new; } > requirements.lock.tmp
	mv requirements.lock.tmp requirements-test.lock
	rm requirements.lock.new

clean: ## Remove what a dead campaign left on this machine, caches and the environment
	@if [ -x $(BIN)/labkit ]; then $(BIN)/labkit clean; fi
	rm -rf .venv docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find labkit tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

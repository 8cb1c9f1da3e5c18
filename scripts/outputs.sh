#!/usr/bin/env bash
# Execute the analysis notebooks on data/reference, keep the outputs that the tests compare, and write
# the golden ledger.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m nbconvert --execute --inplace --to notebook notebooks/analysis/*.ipynb
# It ends with 1 where it changed a notebook.
.venv/bin/python scripts/clean_notebooks.py notebooks/analysis/*.ipynb || true
.venv/bin/python tests/golden/test_golden.py

#!/usr/bin/env bash
# Every test in one pytest run: the unit, rig and browser tests, and the analysis notebooks, which
# nbval executes and compares with the outputs they were committed with.
# Arguments are passed on: scripts/test.sh -k fence
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest tests notebooks/analysis \
    --nbval --nbval-current-env --nbval-cell-timeout 600 \
    --nbval-sanitize-with tests/notebooks/sanitize.cfg "$@"

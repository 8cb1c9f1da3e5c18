#!/usr/bin/env bash
# Run the environment's uv with what the user told pip: index, extra indexes, find-links,
# certificates, trusted hosts, time-out. uv reads none of pip's configuration by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
eval "$(.venv/bin/python scripts/pip_to_uv.py)"
# It would change an environment that is active in place of this one.
unset CONDA_PREFIX
VIRTUAL_ENV=$PWD/.venv exec .venv/bin/uv "$@"

#!/usr/bin/env bash
# Make .venv from requirements.lock and, as root on Debian or Ubuntu, install missing host tools.
#   scripts/setup.sh          what `make report` needs
#   scripts/setup.sh --test   and requirements-test.lock, a browser, engines and servers, for `make test`
# Safe to repeat: a second run only looks. LABKIT_NO_APT=1 keeps it from installing host tools.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/host-tools.sh
source scripts/host-tools.sh

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$@" >&2; exit 1; }

# --- Python --------------------------------------------------------------------------------------
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "labkit needs Python 3.11 or later, and found ${PYTHON:-python3}: $(
        "${PYTHON:-python3}" --version 2>&1 || true)." \
        "Debian 12 and Ubuntu 24.04 have it; elsewhere use pyenv, or conda with environment.yml," \
        "and name it: make PYTHON=/path/to/python3.12 setup"
}

venv_package() { "$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'; }

make_venv() {
    local python=$1
    rm -rf .venv
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv .venv
    elif can_install; then
        # Debian and Ubuntu keep the module that makes environments in a package of its own.
        install_packages "$(venv_package "$python")" && "$python" -m venv .venv
    elif command -v uv >/dev/null; then
        uv venv --quiet --seed --python "$python" .venv
    elif "$python" -c 'import virtualenv' 2>/dev/null; then
        "$python" -m virtualenv --quiet .venv
    else
        die "this Python cannot make environments; run:" \
            "  sudo apt-get install $(venv_package "$python")"
    fi
}

# True where .venv works and was made at this path (an environment cannot be moved).
venv_stands() {
    .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
        grep -qF "$PWD/.venv" .venv/bin/activate
}

# Print one requirement of the lock with its hashes.
locked() { sed -n "/^$1==/,/^[^ ]/{/^$1==/p;/^ /p}" requirements.lock; }

# What .venv holds: a lock, the project's own metadata, the place.
fingerprint() {
    .venv/bin/python -c 'import hashlib, os, pathlib, sys
files = [pathlib.Path(name).read_bytes() for name in (sys.argv[1], "pyproject.toml")]
print(hashlib.sha256(b"\0".join([*files, os.getcwdb(), sys.version.encode()])).hexdigest())' "$1"
}

is_installed() {
    [ -x .venv/bin/labkit ] && [ -f ".venv/.$1" ] &&
        [ "$(fingerprint "$1" 2>/dev/null)" = "$(cat ".venv/.$1")" ]
}

# Bring a lock into .venv by a command of uv, many times as fast as pip, which is the way without it.
install() {
    local lock=$1
    shift
    say "installing the packages of $lock into .venv"
    scripts/uv.sh pip "$@" "$lock" --quiet --require-hashes || {
        say "uv did not manage here; taking pip (slower)"
        .venv/bin/python -m pip install --quiet --no-deps --require-hashes -r "$lock"
    }
}

setup_python() {
    local python
    if ! is_installed requirements.lock; then
        if ! venv_stands; then
            python=$(find_python)
            say "making .venv with $("$python" --version) ($python)"
            make_venv "$python"
        fi
        # uv comes from the same index and by the same lock.
        locked uv >.venv/uv.txt
        .venv/bin/python -m pip install --quiet --require-hashes -r .venv/uv.txt || true
        # Removes what the lock does not have, so also what tests need.
        rm -f .venv/.requirements-test.lock
        install requirements.lock sync
        .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
        # Where PYTHONDONTWRITEBYTECODE is set nothing would ever be compiled, and imports of the
        # scientific stack take 3 to 6 times as long. All bytecode would be 250 MB.
        PYTHONDONTWRITEBYTECODE='' .venv/bin/python -c 'import labkit, ipykernel.kernelapp, nbconvert
import jupyterlab.labapp, labkit.studies, papermill
[getattr(labkit, name) for name in labkit.__all__]'
        fingerprint requirements.lock >.venv/.requirements.lock
    fi
    if [ "${1:-}" = --test ] && ! is_installed requirements-test.lock; then
        install requirements-test.lock install --no-deps --requirements
        fingerprint requirements-test.lock >.venv/.requirements-test.lock
    fi
}

setup_python "${1:-}"
setup_host_tools "${1:-}"

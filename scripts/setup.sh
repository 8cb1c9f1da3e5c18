#!/usr/bin/env bash
# Make .venv from requirements.lock and, as root on Debian or Ubuntu, install missing host tools.
#   scripts/setup.sh          what `make report` needs
#   scripts/setup.sh --test   and a browser, engines and servers, for `make test`
# Safe to repeat: a second run only looks. LABKIT_NO_APT=1 keeps it from installing host tools.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/host-tools.sh
source scripts/host-tools.sh

stamp=.venv/.labkit-setup

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

install_with_uv() {
    # uv is many times as fast as pip; it comes from the same index and by the same lock.
    locked uv >.venv/uv.txt
    .venv/bin/python -m pip install --quiet --require-hashes -r .venv/uv.txt &&
        scripts/uv.sh pip sync --quiet --require-hashes --compile-bytecode requirements.lock &&
        scripts/uv.sh pip install --quiet --no-deps --no-build-isolation --editable .
}

install_with_pip() {
    .venv/bin/python -m pip install --quiet --require-hashes -r requirements.lock
    .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
}

# What .venv holds: the lock, the project's own metadata, the place.
fingerprint() {
    .venv/bin/python -c 'import hashlib, os, pathlib, sys
files = [pathlib.Path(name).read_bytes() for name in ("requirements.lock", "pyproject.toml")]
print(hashlib.sha256(b"\0".join([*files, os.getcwdb(), sys.version.encode()])).hexdigest())'
}

setup_python() {
    local python
    if [ -x .venv/bin/labkit ] && [ -f "$stamp" ] &&
        [ "$(fingerprint 2>/dev/null)" = "$(cat "$stamp")" ]; then
        return
    fi
    if ! venv_stands; then
        python=$(find_python)
        say "making .venv with $("$python" --version) ($python)"
        make_venv "$python"
    fi
    say "installing the packages of requirements.lock into .venv"
    install_with_uv || { say "uv did not manage here; taking pip (slower)"; install_with_pip; }
    # Where PYTHONDONTWRITEBYTECODE is set nothing would ever be compiled, and imports of the
    # scientific stack take 3 to 6 times as long.
    PYTHONDONTWRITEBYTECODE='' .venv/bin/python -m compileall -q -j 0 .venv/lib labkit || true
    fingerprint >"$stamp"
}

setup_python
setup_host_tools "${1:-}"

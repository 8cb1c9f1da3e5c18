# Sourced by setup.sh: gVisor's runtime, built from the Go modules that scripts/gvisor pins, where
# the machine has none that is recent enough. That of Debian 12 has no network on newer kernels.
# shellcheck shell=bash

RUNSC=/usr/local/bin/runsc
RUNSC_SINCE=20250101

# True where a runsc tells a date from which on it is recent enough; one built anyhow tells none.
runsc_stands() {
    local program
    for program in runsc "$RUNSC"; do
        [[ $("$program" --version 2>/dev/null) =~ 20[0-9]{6} ]] &&
            [ "${BASH_REMATCH[0]}" -ge "$RUNSC_SINCE" ] && return
    done
    return 1
}

# Put the pinned Go toolchain on PATH, with it and its caches in a folder; the user's own are not
# touched.
with_go() {
    unset GOROOT
    export GOTOOLCHAIN=local GOWORK=off GOFLAGS='-modcacherw -buildvcs=false' GOPATH=$1/path \
        GOMODCACHE=$1/modules GOCACHE=$1/cache PATH=$1/python/go/bin:$PATH
    [ -d "$1/python" ] || .venv/bin/python -m pip install --quiet --no-deps --require-hashes \
        --target "$1/python" -r scripts/gvisor/requirements.txt
}

build_runsc() (
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    export CGO_ENABLED=0
    module=gvisor.dev/gvisor
    {
        with_go "$folder" &&
            cd scripts/gvisor &&
            version=$(go list -mod=readonly -m -f '{{.Version}}' $module) &&
            go build -mod=readonly -trimpath -ldflags "-X $module/runsc/version.version=$version" \
                -o "$folder/runsc" $module/runsc
    } >"$folder/log" 2>&1 || { tail -n 3 "$folder/log" >&2; exit 1; }
    install -m 755 "$folder/runsc" "$RUNSC"
)

setup_runsc() {
    if [ "${1:-}" != --test ] || runsc_stands; then
        return
    fi
    if [ "$(id -u)" != 0 ] || [ -n "${LABKIT_NO_APT:-}" ]; then
        say "no runsc of ${RUNSC_SINCE:0:4} or later, which placements of gVisor need; make setup-test"
        say "builds one as root, into $RUNSC"
        return
    fi
    say "building gVisor's runtime into $RUNSC, from Go modules (once; takes minutes)"
    build_runsc || say 'it could not be built; going on without: placements of gVisor are refused'
}

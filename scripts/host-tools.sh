# Sourced by setup.sh: which host tools are missing, and how they are installed.
# shellcheck shell=bash

# Programs of the sets named, as lines "program:package:purpose".
tools_of() {
    local program package set purpose
    while IFS=: read -r program package set _ purpose; do
        case " $* " in *" $set "*) echo "$program:$package:$purpose" ;; esac
    done < <(grep -v '^#' "${BASH_SOURCE[0]%/*}/../labkit/rig/programs.txt")
}
mapfile -t HOST_TOOLS < <(tools_of needed measure)
mapfile -t TEST_TOOLS < <(tools_of test)
POLICY=/usr/sbin/policy-rc.d
MARK='made by labkit while it installs packages'
# Packages that bring a service; labkit starts its own instances and needs none of these.
SERVICES=(
    docker.service docker.socket containerd.service ssh.service ssh.socket
    lxc.service lxc-net.service lxc-monitord.service
    nginx.service memcached.service iperf3.service systemd-timesyncd.service
)
UNITS=(/etc /run /usr/local/lib /usr/lib /lib)

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

is_debian() { command -v apt-get >/dev/null && [ -f /etc/debian_version ]; }
can_install() { [ "$(id -u)" = 0 ] && is_debian && [ -z "${LABKIT_NO_APT:-}" ]; }
has_candidate() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]; }

# Print "package<TAB>purpose" for each tool whose program or file is missing.
missing_tools() {
    local line program package purpose
    for line in "$@"; do
        IFS=: read -r program package purpose <<<"$line"
        command -v "$program" >/dev/null || [[ $program = /* && -e $program ]] ||
            printf '%s\t%s\n' "$package" "$purpose"
    done
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confold "$@" </dev/null >&2
}

# Before Debian 13 the client is part of docker.io.
package_name() {
    if [ "$1" = docker-cli ] && ! has_candidate docker-cli; then echo docker.io; else echo "$1"; fi
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

# Print the services that stand on this machine now. Their files tell, also before systemd itself
# comes as something that a package needs.
standing_services() {
    local unit place
    for unit in "${SERVICES[@]}"; do
        for place in "${UNITS[@]}"; do
            [ ! -e "$place/systemd/system/$unit" ] || { echo "$unit"; break; }
        done
    done
}

# Switch off, for the next boot, the services that came with what was installed just now.
disable_new_services() {
    local before=$1 unit new=()
    command -v systemctl >/dev/null || return 0
    for unit in $(standing_services); do
        grep -qx "$unit" <<<"$before" || new+=("$unit")
    done
    [ ${#new[@]} -gt 0 ] || return 0
    systemctl disable "${new[@]}" >/dev/null 2>&1 || true
    say "left off, since labkit starts its own: ${new[*]} (systemctl enable --now turns them on)"
}

# Install packages; a package that this release does not have is named and left out.
install_packages() {
    local package wanted=() before updated=
    for package in "$@"; do
        if ! has_candidate "$package" && [ -z "$updated" ]; then
            apt_get update || true
            updated=yes
        fi
        package=$(package_name "$package")
        if has_candidate "$package"; then
            wanted+=("$package")
        else
            say "this release has no package $package; what needs it will say so"
        fi
    done
    [ ${#wanted[@]} -gt 0 ] || return 0
    before=$(standing_services)
    hold_services
    # Lists that were downloaded long ago may name files that are gone: refresh once, then insist.
    apt_get install --no-install-recommends "${wanted[@]}" ||
        { apt_get update && apt_get install --no-install-recommends "${wanted[@]}"; } ||
        { drop_policy; say "installing ${wanted[*]} failed; going on without"; return 1; }
    drop_policy
    disable_new_services "$before"
}

# Install what is missing of some host tools, or say how.
provide() {
    local missing packages
    missing=$(missing_tools "$@")
    [ -n "$missing" ] || return 0
    packages=$(cut -f1 <<<"$missing" | while read -r name; do package_name "$name"; done |
        sort -u | tr '\n' ' ')
    say 'missing host tools:'
    sed 's/^/setup:   /; s/\t/: /' <<<"$missing" >&2
    if can_install; then
        say "installing them with apt-get, since this is root on Debian or Ubuntu: $packages"
        # shellcheck disable=SC2046
        install_packages $(cut -f1 <<<"$missing" | sort -u) || true
    elif is_debian; then
        say "install them with: sudo apt-get install --no-install-recommends $packages"
        say 'going on without: what cannot be measured here is named in the report'
    else
        say "install what provides them (Debian calls the packages: $packages)"
        say 'going on without: what cannot be measured here is named in the report'
    fi
}

setup_host_tools() {
    local tools=("${HOST_TOOLS[@]}")
    [ "${1:-}" != --test ] || tools+=("${TEST_TOOLS[@]}")
    provide "${tools[@]}"
}

#!/usr/bin/env bash
# Build the papers' own systems and tools, which no distribution packages, from pinned commits.
#   scripts/papers-tools.sh            by `git clone`, or from a folder of snapshots: SOURCES=DIR
#   scripts/papers-tools.sh NAME...    some of them
#   scripts/papers-tools.sh --link     take what another clone has built
#   scripts/papers-tools.sh --clean    remove what it made
# Safe to repeat: what was built from the same sources, patches and steps is not built again.
# A snapshot is NAME-COMMIT.tar.* with one folder in it, COMMIT being the first 12 digits.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/host-tools.sh
source scripts/host-tools.sh
# shellcheck source=scripts/gvisor.sh
source scripts/gvisor.sh
# shellcheck source=scripts/papers-tools/build.sh
source scripts/papers-tools/build.sh

say() { printf 'papers-tools: %s\n' "$*" >&2; }
die() { printf 'papers-tools: %s\n' "$@" >&2; exit 1; }

# name, snapshot's name, repository, commit, and the commit's tree without submodules, by which a
# clone and a snapshot are checked alike
TOOLS=(
    'sfnt-pingpong sfnettest Xilinx-CNS/cns-sfnettest bd7b04c642a1 0a2a5cc51a17a9871fd3d8f1bc74ceb691354d83'
    'memtier_benchmark memtier_benchmark RedisLabs/memtier_benchmark 2f74d61183f8 771f2ddc5e5ba6c77fcd9cdaaaaafc2f6a78db83'
    'wrk2 wrk2 giltene/wrk2 44a94c17d8e6 d1834511e25c2b5c926453e09b9827c6c7b78af3'
    'weave weave weaveworks/weave 8c8476381d48 59b9e39936276db00a0dae6a7a1222480812781d'
    'rkt rkt rkt/rkt 171c416fac02 06d8ffc79a0ead2c5f7782b6500d7d7e2f15a48e'
)
# What each leaves: programs for the hosts, and those that go into the image of the applications too.
PROGRAMS=(sfnt-pingpong memtier_benchmark wrk2 weaver rkt)
IN_IMAGE=(sfnt-pingpong memtier_benchmark wrk2)
FOLDER=/var/lib/labkit/papers-tools
LINKS=/usr/local/bin
LOCAL=containers/apps/local
NEEDED=(
    'git:git:fetching and checking sources'
    'zstd:zstd:unpacking snapshots'
    'patch:patch:the patches of scripts/papers-tools'
    'make:make:building'
    'gcc:gcc:building'
    'g++:g++:memtier_benchmark'
    'autoreconf:autoconf:memtier_benchmark'
    'automake:automake:memtier_benchmark'
    'pkg-config:pkg-config:memtier_benchmark'
    '/usr/include/event2/event.h:libevent-dev:memtier_benchmark'
    '/usr/include/zlib.h:zlib1g-dev:memtier_benchmark'
    '/usr/include/openssl/ssl.h:libssl-dev:wrk2'
    '/usr/include/pcap.h:libpcap-dev:Weave'
    '/usr/include/sys/acl.h:libacl1-dev:rkt'
    'systemd-nspawn:systemd-container:the pods of rkt'
)

clean() {
    local program link
    for program in "${PROGRAMS[@]}"; do
        for link in "$LINKS/$program" "$LOCAL/$program"; do
            [[ $(readlink "$link") != "$FOLDER"/* ]] || rm "$link"
        done
    done
    rm -rf "$FOLDER"
    say "removed $FOLDER and the links to it; packages that it installed stay"
}

# Print the digest of all that a build depends on: sources, patch, steps, the Go toolchain.
digest() {
    {
        echo "$2"
        declare -f "build_$1" go_program
        cat scripts/gvisor/requirements.txt "scripts/papers-tools/$1.patch" 2>/dev/null || true
    } | sha256sum | cut -d' ' -f1
}

# Put the sources of a tool into a folder, and check that they are those that were pinned.
fetch() {
    local snapshot=$1 repository=$2 commit=$3 tree=$4 folder=$5 archive found
    mkdir -p "$folder"
    if [ -n "${SOURCES:-}" ]; then
        archive=$(compgen -G "$SOURCES/$snapshot-$commit*.tar*" | head -n 1) ||
            { echo "$SOURCES has no $snapshot-$commit.tar.*" >&2; return 1; }
        tar -xf "$archive" -C "$folder" --strip-components=1
    else
        # Where the internet is not there, say so soon.
        GIT_TERMINAL_PROMPT=0 timeout 600 git -c http.lowSpeedLimit=1000 -c http.lowSpeedTime=20 \
            clone --quiet --no-checkout "https://github.com/$repository" "$folder"
        git -C "$folder" checkout --quiet "$commit"
        rm -rf "$folder/.git"
    fi
    git -C "$folder" init --quiet
    git -C "$folder" -c core.autocrlf=false add --all --force .
    found=$(git -C "$folder" write-tree)
    rm -rf "$folder/.git"
    [ "$found" = "$tree" ] || { echo "its tree is $found, not $tree" >&2; return 1; }
}

STEPS='
name=$0 work=$1 new=$2 source=$1/$0 patch=$PWD/scripts/papers-tools/$0.patch
shift 2
fetch "$1" "$2" "$3" "$4" "$source"
[ ! -e "$patch" ] || patch --silent --strip=1 --directory="$source" <"$patch"
case $name in weave | rkt) with_go "$work/go" ;; esac
cd "$source"
"build_$name" "$new" "$3"
'

build() {
    local name=$1 wanted began=$SECONDS new=$FOLDER/$1.new log=$work/$1.log
    wanted=$(digest "$name" "$5")
    if [ "$(cat "$FOLDER/$name/digest" 2>/dev/null)" = "$wanted" ]; then
        say "$name stands ($(size "$FOLDER/$name"))"
        return
    fi
    rm -rf "$new"
    mkdir -p "$new"
    # In a process of its own, where `set -e` holds although the result is asked for.
    export -f say with_go fetch go_program "build_$name"
    if ! bash -euo pipefail -c "$STEPS" "$name" "$work" "$new" "${@:2}" >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        rm -rf "$new"
        return 1
    fi
    echo "$wanted" >"$new/digest"
    rm -rf "${FOLDER:?}/$name"
    mv "$new" "$FOLDER/$name"
    say "$name built in $((SECONDS - began)) s ($(size "$FOLDER/$name"))"
}

size() { du -sh "$1" | cut -f1; }

link() {
    local program built
    for program in "${PROGRAMS[@]}"; do
        built=$(compgen -G "$FOLDER/*/$program") || continue
        if [ -e "$LINKS/$program" ] && [ ! -L "$LINKS/$program" ]; then
            say "$LINKS/$program is not ours and stays"
        else
            ln -sfn "$built" "$LINKS/$program"
        fi
        [[ " ${IN_IMAGE[*]} " != *" $program "* ]] || ln -sfn "$built" "$LOCAL/$program"
    done
}

main() {
    local name tool fields began=$SECONDS failed=()
    [ "$(id -u)" = 0 ] || die "run as root: the programs go to $FOLDER, with links in $LINKS"
    case ${1:-} in
        --clean) clean; return ;;
        --link) link; return ;;  # what another clone has built
    esac
    for name in "$@"; do
        printf '%s\n' "${TOOLS[@]}" | grep -q "^$name " || die "unknown: $name"
    done
    # Before anything is installed.
    if [ -z "${SOURCES:-}" ] && command -v git >/dev/null &&
        ! GIT_TERMINAL_PROMPT=0 timeout 30 git ls-remote -q https://github.com/rkt/rkt HEAD >/dev/null; then
        die "github.com cannot be reached" "without it, give a folder of snapshots: SOURCES=DIR"
    fi
    provide "${NEEDED[@]}" # which has traps of its own
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$FOLDER"
    exec 9>"$FOLDER/lock"
    flock -n 9 || { say 'another run is building; waiting for it' && flock 9; }
    for tool in "${TOOLS[@]}"; do
        read -ra fields <<<"$tool"
        [ $# = 0 ] || [[ " $* " = *" ${fields[0]} "* ]] || continue
        build "${fields[@]}" || failed+=("${fields[0]}")
    done
    link
    say "$(size "$FOLDER") in $FOLDER, after $((SECONDS - began)) s; make papers-tools-clean removes it"
    [ ${#failed[@]} = 0 ] || die "not built: ${failed[*]}" \
        "without the internet, give a folder of snapshots: make papers-tools SOURCES=DIR"
}

# Tests read the functions only.
[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@"

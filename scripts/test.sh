#!/usr/bin/env bash
# Every test: the unit, rig and browser tests, and the analysis notebooks, which nbval executes and
# compares with the outputs they were committed with.
# The slowest are shown: most of the time that all tests take is theirs.
# Without arguments in two runs at once, since tests on the rig mostly wait for it; with arguments
# in one, to which they are passed on: scripts/test.sh -k fence
set -euo pipefail
cd "$(dirname "$0")/.."
tests=(.venv/bin/python -m pytest tests notebooks/analysis
    --nbval --nbval-current-env --nbval-cell-timeout 600
    --nbval-sanitize-with tests/notebooks/sanitize.cfg)
if [ $# -gt 0 ]; then exec "${tests[@]}" "$@"; fi

beside=$(mktemp)
# Only when nothing else wants a CPU: what is on the rig takes longer, and waits much. Chromium, as
# root, would give itself more of it than the rig has, so root may not do that here.
behind=(setsid nice -n 19)
if [ "$(id -u)" = 0 ]; then behind+=(setpriv --inh-caps=-sys_nice --bounding-set=-sys_nice); fi
"${behind[@]}" "${tests[@]}" -m 'not rig or apart' -p no:cacheprovider --durations=25 >"$beside" 2>&1 &
other=$!
# Interrupted, once and not terminated, it takes down what its tests have begun: so it is in a session
# of its own, which Ctrl-C does not reach.
trap 'kill -INT "$other" 2>/dev/null && wait "$other" || true; rm -f "$beside"' EXIT
echo 'tests on the rig; all others run beside them, and are shown afterwards'
status=0 rest=0
"${tests[@]}" -m 'rig and not apart' --durations=25 || status=$?
wait "$other" || rest=$?
cat "$beside"
[ "$status" = 0 ] && [ "$rest" = 0 ]

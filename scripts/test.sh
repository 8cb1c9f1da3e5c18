#!/usr/bin/env bash
# Every test but the slow ones: the unit, rig and browser tests, and the analysis notebooks, which
# nbval executes, comparing the cells that are tagged nbval-check-output with their outputs.
# Without arguments in three parts at once, since tests on the rig mostly wait for it; with
# arguments in one, to which they are passed on: scripts/test.sh -k fence
set -euo pipefail
cd "$(dirname "$0")/.."
pytest=(.venv/bin/python -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout 600
    --nbval-sanitize-with tests/notebooks/sanitize.cfg)
if [ $# -gt 0 ]; then exec "${pytest[@]}" tests notebooks/analysis "$@"; fi

# Only when nothing else wants a CPU: what is on the rig takes longer, and waits much. Chromium, as
# root, would give itself more of it than the rig has, so root may not do that here.
behind=(setsid nice -n 19)
if [ "$(id -u)" = 0 ]; then behind+=(setpriv --inh-caps=-sys_nice --bounding-set=-sys_nice); fi
output=$(mktemp -d) runs=()
# Run one part, and write how long it took: part NAME COMMAND...
part() {
    local name=$1 status=0 began=$SECONDS
    shift
    "$@" || status=$?
    echo "$name: $((SECONDS - began)) s, exit code $status" >>"$output/times"
    return "$status"
}
beside() {
    local name=$1
    shift
    part "$name" "${behind[@]}" "${pytest[@]}" -m 'not rig or apart' -p no:cacheprovider \
        --durations=15 "$@" >"$output/$name" 2>&1 &
    runs+=($!)
}
# pytest ends normally when it is interrupted, so that bash would go on.
trap 'exit 130' INT
# Interrupted, once and not terminated, a run takes down what its tests have begun: so it is in a
# session of its own, which Ctrl-C does not reach.
end() {
    for run in "${runs[@]}"; do pkill -INT -P "$run" || true; done
    wait "${runs[@]}" || true
    rm -rf "$output"
}
trap end EXIT
beside unit tests/unit
beside others tests --ignore tests/unit notebooks/analysis
echo 'tests on the rig; all others run beside them, and are shown afterwards'
status=0
part rig "${pytest[@]}" tests -m 'rig and not apart and not slow' --durations=25 || status=$?
for run in "${runs[@]}"; do wait "$run" || status=$?; done
runs=()
cat "$output"/{unit,others,times}
exit "$status"

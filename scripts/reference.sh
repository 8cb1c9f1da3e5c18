#!/usr/bin/env bash
# Put campaigns into data/reference, and renew what depends on them: its description, the outputs of
# the analysis notebooks that the tests compare, and the golden ledger.
#   scripts/reference.sh data/local/decide/rps/20261124-111213-0123456789ab
# A campaign of the same study that was there before is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
    sed -n '2,6s/^# \?//p' "$0" >&2
    exit 2
fi
.venv/bin/labkit dataset verify data/reference
new=$(mktemp -d -p data)
trap 'rm -rf "$new"' EXIT
cp -r data/reference "$new/all"
for campaign in "$@"; do
    study=$(.venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["study"])' <"$campaign/plan.json")
    rm -rf "$new/all/$study"
    cp -r "$campaign" "$new/all/$study"
done
.venv/bin/labkit dataset pack "$new/all" --output "$new/packed"
rm -r data/reference
mv "$new/packed" data/reference
scripts/outputs.sh
git diff --stat -- data notebooks tests/golden

#!/usr/bin/env bash
# Put campaigns into data/reference, and renew what shows them: notebooks and recorded outputs.
#   scripts/reference.sh data/local/decide/rps/20261124-111213-0123456789ab
# A campaign of the same study that was there before is replaced. An experiment (`vary` in its plan)
# is put next to it, with the setting in its name. README.md has findings of the reference: compare.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
    sed -n '2,5s/^# \?//p' "$0" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The digests are made anew below, and would hide a damage of the other campaigns.
.venv/bin/labkit dataset verify data/reference
cp -r data/reference "$work/together"
rm "$work/together/SHA256SUMS"
for campaign in "$@"; do
    study=$(basename "$(dirname "$campaign")")
    varied=$(.venv/bin/python -c 'import json, sys; print(*json.load(sys.stdin).get("vary", ()))' <"$campaign/plan.json")
    folder=$work/together/$study${varied:+-${varied//_/-}}
    rm -rf "$folder"
    cp -r "$campaign" "$folder"
done
.venv/bin/labkit dataset pack "$work/together" -o "$work/reference"
rm -rf data/reference
cp -r "$work/reference" data/reference
notebooks=(notebooks/analysis/*.ipynb)  # all: claims of a paper share one error rate
.venv/bin/python -m nbconvert --execute --inplace --to notebook "${notebooks[@]}"
# It ends with 1 where it changed a notebook.
.venv/bin/python scripts/clean_notebooks.py "${notebooks[@]}" || true
.venv/bin/python tests/golden/test_golden.py
git diff --stat -- data notebooks tests/golden

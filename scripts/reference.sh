#!/usr/bin/env bash
# Put campaigns into data/reference, and renew what shows them: notebooks and recorded outputs.
#   scripts/reference.sh data/local/decide/rps/20261124-111213-0123456789ab
# A campaign of the same study that was there before is replaced. README.md has findings of the
# reference: tests/unit/test_readme.py says whether they changed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
    sed -n '2,5s/^# \?//p' "$0" >&2
    exit 2
fi
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT

# The digests are made anew below, and would hide a damage of the other campaigns.
.venv/bin/labkit dataset verify data/reference
notebooks=()
for campaign in "$@"; do
    study=$(basename "$(dirname "$campaign")")
    notebooks+=(notebooks/analysis/*-"$study".ipynb)
    .venv/bin/labkit dataset pack "$campaign" -o "$packed/$study"
    rm -rf "data/reference/$study"
    mkdir "data/reference/$study"
    # The files that describe a dataset are those of the whole reference.
    (cd "$packed/$study" && rm LICENSE README.md SHA256SUMS datapackage.json ro-crate-metadata.json)
    cp -r "$packed/$study/." "data/reference/$study"
done
rm data/reference/SHA256SUMS
.venv/bin/labkit dataset describe data/reference
.venv/bin/python -m nbconvert --execute --inplace --to notebook "${notebooks[@]}" notebooks/analysis/90-ledger.ipynb
.venv/bin/python scripts/clean_notebooks.py "${notebooks[@]}" notebooks/analysis/90-ledger.ipynb || true
.venv/bin/python tests/golden/test_golden.py
git diff --stat -- data notebooks tests/golden

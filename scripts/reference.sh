#!/usr/bin/env bash
# Put campaigns into data/reference, and renew what shows them: notebooks and recorded outputs. The
# notebooks of a paper's other studies are executed too: its claims share one error rate.
#   scripts/reference.sh data/local/decide/rps/20261124-111213-0123456789ab
# A campaign of the same study that was there before is replaced. An experiment (`vary` in its plan)
# is put beside it, with the setting in its name. README.md has findings of the reference:
# tests/unit/test_readme.py says whether they changed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
    sed -n '2,7s/^# \?//p' "$0" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The digests are made anew below, and would hide a damage of the other campaigns.
.venv/bin/labkit dataset verify data/reference
cp -r data/reference "$work/together"
rm "$work/together/SHA256SUMS"
studies=()
for campaign in "$@"; do
    study=$(basename "$(dirname "$campaign")")
    varied=$(.venv/bin/python -c 'import json, sys; print(*json.load(sys.stdin).get("vary", ()))' <"$campaign/plan.json")
    studies+=("$study")
    folder=$work/together/$study${varied:+-${varied//_/-}}
    rm -rf "$folder"
    cp -r "$campaign" "$folder"
done
shown=$(
    .venv/bin/python - "${studies[@]}" <<'END'
import sys
from pathlib import Path

from labkit.claims.schema import load_claims

claims, measured = load_claims(), set(sys.argv[1:])
papers = {claim.source for claim in claims if claim.study in measured}
measured |= {claim.study for claim in claims if claim.source in papers}
for path in sorted(Path("notebooks/analysis").glob("*.ipynb")):
    if path.stem.partition("-")[2] in measured | {"ledger"}:
        print(path)
END
)
mapfile -t notebooks <<<"$shown"
.venv/bin/labkit dataset pack "$work/together" -o "$work/reference"
rm -rf data/reference
cp -r "$work/reference" data/reference
.venv/bin/python -m nbconvert --execute --inplace --to notebook "${notebooks[@]}"
# It ends with 1 where it changed a notebook.
.venv/bin/python scripts/clean_notebooks.py "${notebooks[@]}" || true
.venv/bin/python tests/golden/test_golden.py
git diff --stat -- data notebooks tests/golden

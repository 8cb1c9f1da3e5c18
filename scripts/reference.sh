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
for campaign in "$@"; do
    study=$(.venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["study"])' <"$campaign/plan.json")
    rm -rf "data/reference/$study"
    .venv/bin/labkit dataset pack "$campaign" --output "data/reference/$study"
    # The description of data/reference stands for all its campaigns.
    (cd "data/reference/$study" && rm README.md LICENSE SHA256SUMS CITATION.cff \
        datapackage.json schema.json ro-crate-metadata.json)
done
.venv/bin/labkit dataset describe data/reference
scripts/outputs.sh
git diff --stat -- data notebooks tests/golden

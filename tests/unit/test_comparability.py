"""Rules that tell what a claim needs and a rig or setting does not have."""

from types import SimpleNamespace

import pandas as pd
import pytest

from labkit.analysis.claims import load_papers
from labkit.analysis.comparability import RULES, Subject


@pytest.mark.parametrize(
    ("carried", "offered", "decidable"),
    [(0.999, 332_000, True), (0.999, 133_000, False), (0.6, 133_000, True)],
)
def test_a_lower_rate_decides_only_where_it_is_more_than_can_be_carried(
    carried, offered, decidable
):
    every = [claim for paper in load_papers() for claim in paper.claims]
    (claim,) = (one for one in every if one.id == "struye2017-docker-below-lxc")
    rows = [
        {"hosts": 1, "chain": chain, "payload_b": 28, "placement": placement}
        for chain in (1, 20)
        for placement in ("docker nat", "lxc nat")
    ]
    conditions = pd.DataFrame(rows).assign(
        offered_per_s=offered, sent_per_s=offered, packets_per_s=carried * offered
    )
    campaign = SimpleNamespace(conditions=conditions)
    needs = RULES["offered"](claim.needs["offered"], Subject(claim, campaign))
    assert (needs == "") == decidable

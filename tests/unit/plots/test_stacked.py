"""Shares as stacked bars."""

import io

import pandas as pd
import pytest
from matplotlib.text import Text

from labkit.errors import UsageError
from labkit.plots import stacked_plot

PANELS = {
    "client": {"client_user": "user", "client_kernel": "kernel"},
    "server": {"server_user": "user", "server_kernel": "kernel"},
}


def trials():
    shares = {"client_user": [0.2, 0.4], "client_kernel": [0.3, 0.5]}
    shares |= {"server_user": [0.1, 0.1], "server_kernel": [None, None]}
    names = {"block": [1, 2], "placement": "docker host", "application": "nginx"}
    one = pd.DataFrame({**names, **shares})
    return pd.concat([one, one.assign(placement="docker nat", application="pg")])


def test_parts_of_a_bar_follow_each_other():
    drawn = stacked_plot(
        trials(), panels=PANELS, label="placement", row="application", unit="share of a side's CPUs"
    )
    drawn.savefig(io.BytesIO(), format="png")
    said = {text.get_text() for text in drawn.findobj(Text)}
    assert {"nginx, client", "pg, server", "share of a side's CPUs", "user", "kernel"} <= said
    assert "n = 2 blocks, 4 trials; means over trials" in said
    bars = [(bar.get_x(), bar.get_width()) for bar in drawn.axes[0].patches]
    # Docker's published port was not measured with nginx: its bars have no length.
    assert bars == [
        (0.0, pytest.approx(0.3)),
        (0.0, 0.0),
        (pytest.approx(0.3), pytest.approx(0.4)),
        (0.0, 0.0),
    ]


def test_a_share_that_is_no_column_is_refused():
    with pytest.raises(UsageError, match="server_kernel"):
        stacked_plot(
            trials().drop(columns="server_kernel"),
            panels=PANELS,
            label="placement",
            row="application",
            unit="",
        )

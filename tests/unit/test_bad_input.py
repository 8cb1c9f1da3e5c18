"""Damaged texts are read or refused with an error of labkit, and never crash.

``LABKIT_EXAMPLES=5000`` tries that many of each kind.
"""

import pytest
from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st

from labkit.paths import SHIPPED
from labkit.placement import parse_cpus
from labkit.rig.rigfile import EXAMPLE, read_rigfile


def read_rig(text, folder):
    (folder / "rig.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    return read_rigfile(folder / "rig.toml")


TEXTS = {
    "cpus": ("0-3,8,10-11", lambda text, folder: parse_cpus(text)),
    "rig": ((SHIPPED / EXAMPLE).read_text("utf-8"), read_rig),
}


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_damaged_texts_are_read_or_refused(name, data, tmp_path):
    text, read = TEXTS[name]
    changed = data.draw(damaged(text))
    survives(lambda: read(changed, tmp_path))

"""A damaged rig.toml is read or refused with an error of labkit, and never crashes.

``LABKIT_EXAMPLES=5000`` tries that many.
"""

from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st

from labkit.paths import SHIPPED
from labkit.rig.rigfile import EXAMPLE, read_rigfile


@given(data=st.data())
def test_a_damaged_rig_file_is_read_or_refused(data, tmp_path):
    changed = data.draw(damaged((SHIPPED / EXAMPLE).read_text("utf-8")))
    (tmp_path / "rig.toml").write_bytes(changed.encode("utf-8", "surrogatepass"))
    survives(lambda: read_rigfile(tmp_path / "rig.toml"))

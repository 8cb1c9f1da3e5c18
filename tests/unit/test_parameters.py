"""Parameters that a notebook does not declare."""

import pytest

from labkit.errors import UsageError
from labkit.parameters import check_parameters

DECLARED = "rig = 'auto'\nblocks: int = 5\nx = y = 1"


@pytest.mark.parametrize(
    "cells",
    [
        [],
        ["", DECLARED, "import labkit"],
        ["", DECLARED, "# Parameters\nblocks = 2\ny = 3\n"],
        ["", DECLARED, "# Parameters\nnot python"],
    ],
)
def test_what_is_declared_may_be_given(cells):
    check_parameters(cells)


def test_what_is_not_declared_is_named_with_what_there_is():
    with pytest.raises(UsageError, match="mesages") as caught:
        check_parameters(["", DECLARED, "# Parameters\nblocks = 2\nmesages = 7\n"])
    assert caught.value.remedy == "it declares blocks, rig, x, y"

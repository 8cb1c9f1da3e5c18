"""Wrong use of commands: exit code 2 and the remedy, before anything runs."""

from __future__ import annotations

import pytest

from labkit import cli


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("run", "--profile", "nope"), "one of ask, decide, paper, quick, tiny, why"),
        (("run", "nosuch"), "one of affinity-spinning"),
        (("run", "-P", "tiny", "-p", "nosuch", "1"), "one of rig, blocks, messages"),
        (("run", "-p", "blocks"), "requires 2 arguments"),
        (("run", "-f", "none.yaml"), "does not exist"),
        (("run", "cpu-quota", "rps", "-P", "tiny", "-p", "calls", "9"), "65-rps.ipynb has no"),
        (("status", "none"), "does not exist"),
        (("status", "--watch", "0.1"), "not in the range"),
        (("rig", "shell", "nosuch"), "one of generator, sut, clean"),
        (("ask", "nosuch"), "one of affinity-spinning"),
        (("nosuch",), "No such command"),
        (("clean", "--nosuch"), "No such option"),
    ],
)
def test_wrong_use_is_exit_code_2_before_anything_runs(
    argv: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        "papermill.execute_notebook", lambda *_, **__: pytest.fail("a notebook ran")
    )
    with pytest.raises(SystemExit) as stop:
        cli.main(list(argv))
    assert stop.value.code == 2
    assert words in capsys.readouterr().err

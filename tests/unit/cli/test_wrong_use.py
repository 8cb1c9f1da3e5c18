"""Wrong use of commands: exit code 2 and the remedy, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import cli
from labkit.rig import lock, netns


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
        (("ask", "nosuch"), "one of affinity-spinning"),
        (("nosuch",), "No such command"),
        (("doctor", "--nosuch"), "No such option"),
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


def test_settings_of_a_rig_that_was_left_are_not_restored_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of its hosts would be looked for on this machine, where they never were."""
    monkeypatch.setattr(lock, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(netns, "existing", lambda: ["labkit-sut"])
    monkeypatch.setattr("labkit.hosts.restore", lambda host: pytest.fail("it restored"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["restore"])
    assert stop.value.code == 1
    assert "labkit clean" in capsys.readouterr().err

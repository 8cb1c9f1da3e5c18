"""The command line and a study notebook as programs, which bring up the rig themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit import load
from labkit.cli import app
from labkit.cli.campaigns import run
from labkit.cli.options import rig_spec
from labkit.errors import UsageError
from labkit.hosts import LocalHost
from labkit.paths import SHIPPED as ROOT
from labkit.rig import engine, lock, netns, virtual

NOTEBOOK = "notebooks/studies/10-affinity-spinning.ipynb"
COMMANDS = [
    *("", "doctor", "rig", "rig up", "rig status", "rig down", "rig shell"),
    *("run", "status", "report", "ledger", "restore", "clean", "lab", "ask"),
    *("rig prepare", "worker", "compare-datasets"),
]
#: Seconds to wait for other users of the machine's rig.
PATIENCE = 900.0
IN_USE = "the rig is in use"


def once(*argv: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def program(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the project, and repeat it while another process uses the rig."""
    deadline = time.monotonic() + PATIENCE
    while IN_USE in (result := once(*argv)).stderr and time.monotonic() < deadline:
        time.sleep(1)
    return result


def labkit(*argv: str) -> subprocess.CompletedProcess[str]:
    return program("labkit.cli", *argv)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_an_example(command: str) -> None:
    found = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="labkit")
    assert found.exit_code == 0 and found.stderr == ""
    assert found.stdout.startswith(f"Usage: labkit {command}".strip())
    example = re.search(r"Examples?: (labkit .*)", found.stdout)
    with_example = (
        "doctor",
        "rig up",
        "rig shell",
        "run",
        "status",
        "report",
        "ledger",
        "ask",
        "clean",
        "lab",
        "restore",
        "rig prepare",
        "worker",
        "compare-datasets",
    )
    assert bool(example) == (command in with_example)
    for text in example[1].split(" | ") if example else ():
        assert text.split()[: 1 + len(command.split())] == ["labkit", *command.split()]


@pytest.mark.parametrize("options", [["--samples"], ["--tls-key", "me.key"]])
def test_options_of_a_scheduler_are_refused_without_one(options: list[str]) -> None:
    error = CliRunner().invoke(run, ["10", *options]).exception
    assert isinstance(error, UsageError) and "--scheduler" in str(error)


def test_a_rig_file_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rig.toml").write_text("[")
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["doctor", "--rig", "rig.toml"])
    assert isinstance(found.exception, UsageError)
    assert str(tmp_path / "rig.toml") in str(found.exception)
    assert rig_spec("rig.toml") == str(tmp_path / "rig.toml") and rig_spec("virtual") == "virtual"
    monkeypatch.chdir(ROOT / "docs")
    assert rig_spec("rigs/two-guests.toml") == "docs/rigs/two-guests.toml"


def traces() -> dict[str, list[str]]:
    """Return what a rig that is up adds to the machine."""
    local = LocalHost()
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    groups = Path("/sys/fs/cgroup")
    keys = Path("/proc/sys/kernel/keys")
    return {
        "namespaces": netns.existing(),
        "routes": local.run("ip", "route", "show", "198.18.0.0/15").stdout.split(),
        "mounts": [line for line in mounts if f" {lock.RUN}/" in line or f" {lock.KEEP}/" in line],
        "groups": [
            str(path) for path in (groups / "labkit", *groups.glob("*/labkit")) if path.is_dir()
        ],
        "state": [str(lock.STATE)] if lock.STATE.exists() else [],
        "keys": [(keys / name).read_text() for name in ("root_maxkeys", "root_maxbytes")],
    }


@pytest.fixture
def no_rig() -> Iterator[dict[str, list[str]]]:
    """Take the rig down before and after; return the state of the machine without it."""
    with lock.locked(PATIENCE):
        virtual.down()
    yield traces()
    with lock.locked(PATIENCE):
        virtual.down()


@pytest.mark.rig
def test_the_rig_goes_up_and_down_without_a_trace(
    no_rig: dict[str, list[str]],
) -> None:
    assert labkit("rig", "status").stdout.startswith("the virtual rig is down\n")
    refused = labkit("rig", "shell", "sut", "true")
    assert refused.returncode == 1 and "remedy: labkit rig up" in refused.stderr
    up = labkit("rig", "up")
    assert up.returncode == 0, up.stderr
    assert traces()["routes"][:2] == ["unreachable", "198.18.0.0/15"]
    again = labkit("rig", "up")
    assert again.returncode == 0 and "the rig is up already" in again.stderr
    status = labkit("rig", "status")
    assert status.returncode == 0
    assert re.search(r"^sut +198\.18\.0\.3 with Docker Engine$", status.stdout, re.MULTILINE)
    assert "used by nobody" in status.stdout and "CPUs: " in status.stdout
    _check_shells()
    refused = labkit("restore")
    assert refused.returncode == 2 and "the virtual rig is up" in refused.stderr
    down = labkit("rig", "down")
    assert down.returncode == 0, down.stderr
    assert traces() == no_rig
    assert labkit("rig", "down").returncode == 0
    assert labkit("restore").stdout == "nothing to restore\n"
    assert labkit("clean").stdout == "nothing was left\n"
    assert traces() == no_rig


def _check_shells() -> None:
    """Assert that a shell runs on its host, with its arguments and exit code."""
    for host, address in (("generator", "198.18.0.2"), ("clean", "198.18.0.4")):
        shown = labkit("rig", "shell", host, "ip", "-4", "-o", "addr", "show", "dev", "lab0")
        assert shown.returncode == 0 and f"inet {address}/24" in shown.stdout
    engine_says = labkit("rig", "shell", "sut", "docker", "info", "--format", "{{.DockerRootDir}}")
    assert engine_says.stdout.strip() == str(engine.DATA_ROOT)
    words = ["a b", "$HOME", "'", "--help"]
    said = labkit("rig", "shell", "sut", "--", "printf", "%s|", *words)
    assert said.stdout == "a b|$HOME|'|--help|"
    assert labkit("rig", "shell", "sut", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.rig
def test_containers_of_a_dead_campaign_are_removed(
    no_rig: dict[str, list[str]],
) -> None:
    assert labkit("rig", "up").returncode == 0
    image = json.loads(lock.STATE.read_text())["images"]["net"]["reference"]
    create = ("docker", "create", "--label", "labkit=trial-0-dead", image, "true")
    local, env = LocalHost(), {"DOCKER_HOST": engine.SOCKET}
    listing = ("docker", "ps", "--all", "--quiet", "--filter", "label=labkit=trial-0-dead")
    local.run(*create, env=env)
    cleaned = labkit("clean")
    assert cleaned.returncode == 0 and cleaned.stdout.startswith("container ")
    assert local.run(*listing, env=env).stdout == ""
    # The engine is killed with the container still there, and remembers it.
    local.run(*create, env=env)
    os.kill(int((netns.DIRECTORY / "docker.pid").read_text()), signal.SIGKILL)
    assert labkit("rig", "down").returncode == 0
    assert traces() == no_rig
    assert labkit("rig", "up").returncode == 0
    assert local.run(*listing, env=env).stdout == ""


#: A part of the first study whose trials take about a second: one network, no capture, and the
#: exchange without sockperf, which sleeps for two seconds. As found, as tests beside it use both
#: CPUs, which makes trials without a shared cache, failed attempts otherwise, likely.
SMALL = (
    "{networks: [host], cells: {ladder: [spin], capture: []}, exchange: 'udp in, tcp out',"
    " shared_cache: as found}"
)


def papermill(folder: Path, **parameters: str) -> list[str]:
    pairs = {"data": str(folder / "data")} | parameters
    given = ["-y", SMALL]
    given += [text for name, value in pairs.items() for text in ("-p", name, value)]
    return ["papermill", "--log-level", "ERROR", NOTEBOOK, str(folder / "out.ipynb"), *given]


def snapshot(path: Path) -> dict[str, bytes]:
    files = (one for one in path.rglob("*") if one.is_file() and one.name != ".lock")
    return {str(one): one.read_bytes() for one in files}


@pytest.mark.rig
def test_a_study_notebook_measures_resumes_and_begins_anew(
    tmp_path: Path, no_rig: dict[str, list[str]]
) -> None:
    first = program(*papermill(tmp_path, blocks="1", messages="500"))
    assert first.returncode == 0, first.stderr[-3000:]
    campaign = load(tmp_path / "data" / "affinity-spinning")
    planned = len(campaign.plan["conditions"])
    assert planned == len(campaign.ok) == campaign.ok["trial"].nunique() > 12
    for path in campaign.path.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        assert record["verification"]["status"]["Cpus_allowed_list"]
        assert {"context_switches", "server_last_cpu", "steal"} <= set(record["rows"][0])
    before = snapshot(campaign.path)
    refused = program(*papermill(tmp_path, blocks="1", messages="600"))
    assert refused.returncode != 0
    assert "settings.messages: 500 -> 600" in refused.stderr and "-p new True" in refused.stderr
    assert snapshot(tmp_path / "data") == before
    _begin_anew_and_interrupt(tmp_path)
    assert snapshot(campaign.path) == before
    newest = load(tmp_path / "data" / "affinity-spinning")
    assert newest.path != campaign.path and newest.plan["settings"]["messages"] == 600
    assert 1 <= len(newest.ok) == len(newest.trials) < planned
    # papermill kills its kernel, so that the rig may still be up.
    assert labkit("clean").returncode == 0
    assert traces() == no_rig


def _begin_anew_and_interrupt(folder: Path) -> None:
    """Run with ``new``, and send SIGINT as a terminal does when a trial is finished."""
    argv = [sys.executable, "-m", *papermill(folder, blocks="1", messages="600", new="True")]
    pattern = "data/*/*/trials/b*/trial.json"
    before = len(list(folder.glob(pattern)))
    deadline = time.monotonic() + PATIENCE
    said, ended = IN_USE, False
    while IN_USE in said and time.monotonic() < deadline:
        with (folder / "said").open("w+") as output:
            process = subprocess.Popen(
                argv, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )
            while not (ended := process.poll() is not None) and (
                len(list(folder.glob(pattern))) == before
            ):
                time.sleep(0.2)
            if not ended:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=120)
            said = (folder / "said").read_text()
    assert not ended and process.returncode != 0, said[-3000:]


@pytest.mark.rig
def test_a_question_is_answered_by_measuring() -> None:
    found = labkit("ask", "network-isolation", "--new")
    assert found.returncode == 0, found.stderr
    campaign = load(ROOT / "data" / "local" / "ask" / "network-isolation")
    page = ROOT / "reports" / "25-network-isolation.html"
    assert f"page: {page}\n" in found.stdout and page.is_file()
    assert "docker nat" in found.stdout and "95 %" in page.read_text(encoding="utf-8")
    assert {"docker host", "docker bridge", "docker nat"} <= set(campaign.ok["placement"])
    assert campaign.complete_blocks == campaign.plan["blocks"] >= 6
    again = labkit("ask", "network-isolation")
    assert again.returncode == 0 and again.stdout == found.stdout, "it measured again"

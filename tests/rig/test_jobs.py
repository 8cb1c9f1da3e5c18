"""Detached jobs: starting, waiting, and stopping them with all descendants and nothing else."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sshd import alive

from labkit.errors import CommandFailed
from labkit.hosts import LocalHost, labelled, start_job, stop_labelled
from labkit.hosts.jobs import Job

pytestmark = [pytest.mark.rig, pytest.mark.apart]
HOST = LocalHost()

#: Starts a daemon in a new session that ignores TERM, and writes its pid to a file.
DAEMON = """
setsid sh -c 'trap "" TERM; (trap "" TERM; echo $$ >daemon.new; mv daemon.new daemon
    exec sleep 300) & wait' &
while [ ! -e daemon ]; do sleep 0.02; done
"""


@pytest.fixture
def label() -> Iterator[str]:
    name = f"lkt-{uuid4().hex[:8]}/"
    yield name
    stop_labelled(HOST, name)


@pytest.fixture
def start(tmp_path: Path, label: str) -> Callable[..., Job]:
    def begin(*argv: str, name: str = "job", **options: dict[str, str]) -> Job:
        return start_job(HOST, argv, directory=str(tmp_path / name), label=label, **options)

    return begin


def until(path: Path) -> None:
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def test_other_users_neither_list_the_folder_nor_read_what_a_job_prints(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        job = start("sh", "-c", "umask; mkdir served; echo x >served/file")
    finally:
        os.umask(before)
    assert job.wait(30).stdout.strip() == "0022"
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "job").iterdir()}
    assert modes.pop("served") == "0o755"  # a server that gave up root reads what it is given
    assert modes.keys() == {"stdout", "stderr", "status", "lock", "pid"}
    assert set(modes.values()) == {"0o600"}
    assert oct((tmp_path / "job").stat().st_mode & 0o777) == "0o711"


def test_a_job_from_start_to_end(start: Callable[..., Job], tmp_path: Path) -> None:
    text = 'echo "$1 $X"; echo err >&2; pwd; cat; until [ -e go ]; do sleep 0.02; done; exit 3'
    job = start("env", "X=x y", "sh", "-c", text, "sh", "a 'b\nc")
    assert job.running()
    assert alive(job.pid)
    (tmp_path / "job" / "go").touch()
    result = job.wait(20)
    assert (result.status, result.timed_out, result.host) == (3, False, "local")
    assert result.stdout == f"a 'b\nc x y\n{tmp_path}/job\n" == job.stdout()
    assert result.stderr == "err\n" == job.stderr()
    assert 0 <= result.seconds < 20
    assert not job.running()
    with pytest.raises(CommandFailed):
        result.check()
    job.stop()
    assert job.wait(0).status == 3  # stopping does not change the result


def test_waiting_does_not_poll(start: Callable[..., Job]) -> None:
    job = start("sleep", "2")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    assert job.wait(30).check().seconds >= 1.9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before < 20


def test_a_job_is_ended_at_its_time_limit(start: Callable[..., Job]) -> None:
    result = start("sh", "-c", 'trap "" TERM; sleep 300 & echo $!; sleep 300').wait(1)
    assert result.timed_out and not alive(int(result.stdout))
    assert start("labkit-no-such-program").wait(10).status == 127


def test_only_one_job_per_directory(start: Callable[..., Job]) -> None:
    job = start("sleep", "300")
    with pytest.raises(CommandFailed, match="a job is running"):
        start("true")
    job.stop()
    again = start("echo", "second")
    assert again.wait(10).check().stdout == "second\n"


def test_stop_ends_a_daemon(start: Callable[..., Job], tmp_path: Path) -> None:
    job = start("sh", "-c", DAEMON + "sleep 300")
    until(tmp_path / "job" / "daemon")
    daemon = int((tmp_path / "job" / "daemon").read_text())
    assert os.getsid(daemon) != os.getsid(job.pid)
    job.stop(grace=0.2)
    assert not alive(daemon)


def test_waiting_for_a_job_whose_supervisor_is_killed_ends_it(start: Callable[..., Job]) -> None:
    job = start("sleep", "300")
    os.kill(os.getsid(job.pid), signal.SIGKILL)
    result = job.wait(20)
    assert (result.status, result.timed_out) == (None, False)
    assert not alive(job.pid) and not job.running()


def test_a_reused_pid_is_left_alone(start: Callable[..., Job], tmp_path: Path) -> None:
    job = start("true")
    job.wait(10)
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:
        (tmp_path / "job" / "pid").write_text(f"{other.pid} {other.pid}")
        assert not job.running()
        job.stop()
        assert other.poll() is None
        other.kill()


def test_a_daemon_is_found_by_its_label(
    start: Callable[..., Job], tmp_path: Path, label: str
) -> None:
    job = start("sh", "-c", DAEMON)
    job.wait(20).check()
    daemon = int((tmp_path / "job" / "daemon").read_text())
    assert not job.running()
    assert daemon in [pid for pid, _, _ in labelled(HOST, label)]
    stopped = stop_labelled(HOST, label, grace=0.2)
    assert [row for row in stopped if row.startswith(f"{daemon} {label} ")]
    assert not alive(daemon)
    assert labelled(HOST, label) == stop_labelled(HOST, label) == []


def test_other_labels_are_left_alone(start: Callable[..., Job], tmp_path: Path, label: str) -> None:
    ours = start("sleep", "300")
    other = label.replace("lkt-", "lkt-other-")
    theirs = start_job(HOST, ["sleep", "300"], directory=str(tmp_path / "2"), label=other)
    odd = start_job(HOST, ["sleep", "300"], directory=str(tmp_path / "3"), label=label + "a.b/")
    assert stop_labelled(HOST, label + "axb") == []
    assert len(stop_labelled(HOST, label + "a.b")) == 1
    assert not odd.running()
    stop_labelled(HOST, label)
    assert not ours.running()
    assert theirs.running()
    stop_labelled(HOST, other)
    assert not theirs.running()

"""Hosts: this machine, and a real sshd on the loopback interface."""

from __future__ import annotations

import json
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import MARKS, Server, running

from labkit.hosts import Host, LocalHost, SshHost, start_job

pytestmark = MARKS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("sshd")) as started:
        yield started


@pytest.fixture(scope="module")
def ssh(server: Server) -> Iterator[SshHost]:
    host = server.host()
    yield host
    host.close()


@pytest.fixture(scope="module", params=["local", "ssh", "namespace"])
def host(request: pytest.FixtureRequest, server: Server) -> Iterator[Host]:
    instance: Host = LocalHost()
    if request.param == "ssh":
        instance = server.host()
    elif request.param == "namespace":
        instance = server.host(namespace="/proc/self/ns/net")
    yield instance
    instance.close()


def test_hostile_texts_stay_arguments(host: Host, tmp_path: Path) -> None:
    choose, flag = random.Random(3), tmp_path / "injected"
    parts = [
        "'",
        '"',
        "\\",
        f"$(touch {flag})",
        f"`touch {flag}`",
        f";touch {flag};",
        "|",
        "&",
        "\n",
    ]
    parts += [
        f">{flag}",
        '"',
        "$HOME",
        "*",
        "~",
        "!!",
        "#",
        "--",
        "A=b",
        "%s",
        "\udcff",
        "\x01",
        "é",
    ]
    for _ in range(4):
        texts = ["".join(choose.choices(parts, k=choose.randint(0, 8))) for _ in range(250)]
        echo = "import json, os, sys; print(json.dumps([*sys.argv[1:], os.environ['LABKIT_TEST']]))"
        result = host.run("python3", "-Sc", echo, *texts, env={"LABKIT_TEST": texts[0]})
        assert json.loads(result.stdout) == [*texts, texts[0]]
        assert host.call("read", path="/no/file", default=texts) == texts
    assert not flag.exists()


def test_large_data_on_every_stream(host: Host) -> None:
    text = "head -c 10000000 /dev/zero >&2; head -c 10000000 /dev/zero; wc -c"
    result = host.run("sh", "-c", text, input="x" * 4_000_000)
    assert len(result.stderr) == 10_000_000
    assert result.stdout == "\0" * 10_000_000 + "4000000\n"


def test_the_status_of_a_signal(host: Host) -> None:
    assert host.run("sh", "-c", "kill -TERM $$", check=False).status == 143


def test_waiting_does_not_poll(host: Host) -> None:
    def switches(*argv: str) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        host.run(*argv)
        return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before

    host.run("true")
    # Starting and ending takes some context switches; two seconds of waiting add none.
    assert switches("sleep", "2") - switches("true") < 20


def test_waiting_can_be_interrupted(host: Host) -> None:
    host.run("true")
    timer = threading.Timer(
        0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
    )
    begin = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        host.run("sleep", "200", timeout=250)
    assert time.monotonic() - begin < 200  # it was interrupted before the command ended
    assert host.run("echo", "again").stdout == "again\n"


def test_commands_from_many_threads(host: Host) -> None:
    answers: dict[int, str] = {}

    def run(number: int) -> None:
        answers[number] = host.run("sh", "-c", 'sleep 0.1; echo "$1"', "sh", str(number)).stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\n" for number in range(6)}


def test_a_file_is_copied_with_its_mode(host: Host, tmp_path: Path) -> None:
    source, copy = tmp_path / "a {host}", tmp_path / "b c"
    source.write_bytes(bytes(range(256)) * 5000)
    source.chmod(0o750)
    host.put(source, str(copy))
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_mode == source.stat().st_mode


def test_jobs_outlive_the_connection(server: Server, tmp_path: Path) -> None:
    first = server.host()
    job = start_job(
        first,
        ["sh", "-c", "sleep 0.5; echo done"],
        directory=str(tmp_path / "job"),
        label="lkt-ssh",
    )
    first.close()
    assert job.wait(10).check().stdout == "done\n"
    first.close()


def test_close_ends_threads(server: Server) -> None:
    host = server.host()
    host.run("true")
    transport = host._connection.transport
    host.close()
    transport.join(10)
    assert not transport.is_alive()
    assert host.run("echo", "back").stdout == "back\n"
    host.close()
    host.close()

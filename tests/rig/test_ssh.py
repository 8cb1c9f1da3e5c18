"""Hosts by a real sshd on the loopback interface, lost and hanging connections, and jobs."""

import getpass
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import paramiko
import psutil
import pytest
from own_machines import command, make_key
from paramiko.common import MSG_CHANNEL_REQUEST
from processes import alive, wait_for

from labkit.errors import HostUnreachable, UsageError
from labkit.hosts import Host, SshHost
from labkit.hosts.target import Target
from labkit.rig import images

pytestmark = [pytest.mark.rig, pytest.mark.apart]
HERE = Host()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return an sshd's process and port, and a function that makes a host, not yet connected."""
    folder = tmp_path_factory.mktemp("sshd")
    make_key(folder / "user")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {make_key(folder / 'host')}")
    where = ("-D", "-e", "-oListenAddress=127.0.0.1", f"-oPort={port}")
    argv = command(folder / "host", folder / "user.pub", *where)
    given = {"user": getpass.getuser(), "key": folder / "user", "known_hosts": known, "port": port}
    with (folder / "log").open("w") as log, psutil.Popen(argv, stderr=log) as process:
        wait_for(lambda: "Server listening" in (folder / "log").read_text())
        host = partial(SshHost, "loop", "127.0.0.1", **given)
        yield SimpleNamespace(process=process, port=port, host=host)
        for one in [*process.children(), process]:
            one.terminate()


@pytest.fixture(scope="module", params=["here", "ssh", "ssh from a namespace"])
def host(request, server):
    namespace = "/proc/self/ns/net" if "namespace" in request.param else ""
    if request.param == "here":
        yield HERE
        return
    with closing(server.host(namespace=namespace)) as one:
        yield one


def test_hostile_texts_stay_arguments(host, tmp_path):
    choose, flag = random.Random(3), tmp_path / "injected"
    parts = ["'", '"', "\\", f"$(touch {flag})", f"`touch {flag}`", f";touch {flag};", "|", "&"]
    parts += ["\n", f">{flag}", "$HOME", "*", "~", "!!", "#", "--", "A=b", "%s", "\udcff", "\x01"]
    texts = ["".join(choose.choices(parts, k=choose.randint(0, 8))) for _ in range(500)]
    echo = "import json, os, sys; print(json.dumps([*sys.argv[1:], os.environ['LABKIT_TEST']]))"
    result = host.run("python3", "-Sc", echo, *texts, env={"LABKIT_TEST": texts[0]})
    assert json.loads(result.stdout) == [*texts, texts[0]]
    assert host.call("read", path="/no/file", default=texts) == texts
    assert not flag.exists()
    for words in (("true", "\0"), ("true", *["x" * 30_000] * 4)):
        with pytest.raises(UsageError, match="NUL or more than 100,000"):
            host.run(*words)


def test_data_status_and_files_of_a_host(host, tmp_path):
    text = "head -c 10000000 /dev/zero >&2; head -c 10000000 /dev/zero; wc -c"
    result = host.run("sh", "-c", text, input="x" * 4_000_000)
    assert len(result.stderr) == 10_000_000
    assert result.stdout == "\0" * 10_000_000 + "4000000\n"
    assert host.run("sh", "-c", "kill -TERM $$", check=False).status == 143
    assert host.run("locale").stdout.endswith("LC_ALL=C\n")
    source, copy = tmp_path / "a {host}", tmp_path / "b c"
    source.write_bytes(bytes(range(256)) * 50_000)  # more than one part
    images.run_with(Target(host, ""), str(source), 'cp "$1" "$2"', str(copy))
    assert copy.read_bytes() == source.read_bytes()


#: Prints how often its parent, which is the agent, and another process waited anew in two seconds.
WAITS = """
count() { awk '/^voluntary/ { n += $2 } END { print n }' /proc/$1/task/*/status; }
sleep 0.5
agent=$(count $PPID) harness=$(count $1)
sleep 2
echo $(($(count $PPID) - agent)) $(($(count $1) - harness))
"""


def test_nothing_polls_in_a_window(host, tmp_path):
    folder, argv = str(tmp_path / "window"), ["sh", "-c", WAITS, "sh", str(os.getpid())]
    given = {"folder": folder, "folders": [], "readings": {}, "places": {}, "cpus_of_line": []}
    given["logs"] = {}
    loads = {"load": [",".join(map(str, os.sched_getaffinity(0))), argv]}
    assert host.call("run_window", **given, label="lkt", seconds=9, loads=loads)["status"] == 0
    found = host.call("collect", folder=folder, folders=[], readings={}, logs={})
    # Waking up ten times a second would be 20.
    assert [int(waits) < 8 for waits in found["texts"]["load.out"].split()] == [True, True]


def test_commands_run_at_once_and_can_be_interrupted(host):
    with ThreadPoolExecutor(6) as pool:
        texts = pool.map(lambda number: host.run("echo", str(number)).stdout, range(6))
        assert list(texts) == [f"{number}\n" for number in range(6)]
    main = threading.main_thread().ident
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    begin = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        host.run("sleep", "200", timeout=250)
    assert time.monotonic() - begin < 200, "it was not interrupted"
    assert host.run("echo", "again").stdout == "again\n"


# Connections that are lost or hang.


@pytest.fixture
def connection(server):
    """Yield a connected host and the server's processes of its connection.

    It must answer again by another connection at the end.
    """
    known = server.process.children(recursive=True)
    with closing(server.host()) as host:
        host.run("true")
        new = [one for one in server.process.children(recursive=True) if one not in known]
        pids = [str(one.pid) for one in new if "sshd" in one.name()]
        assert pids
        yield host, pids
        HERE.run("kill", "-KILL", *pids, check=False)
        assert host.run("echo", "again").stdout == "again\n"


@pytest.mark.parametrize("name", ["KILL", "STOP"])
def test_a_connection_that_is_lost_or_hangs_during_a_command(connection, monkeypatch, name):
    monkeypatch.setattr("labkit.hosts.host.PATIENCE", 0.5)
    host, pids = connection
    text = 'echo $$; echo oops >&2; sleep 0.3; kill -"$0" "$@"; exec sleep 300'
    with pytest.raises(HostUnreachable, match="dropped") as caught:
        host.run("sh", "-c", text, name, *pids, timeout=3)
    evidence = caught.value.evidence
    assert evidence["stderr"] == "oops\n" and "sh" in evidence["argv"]
    # Its own time limit ends the command.
    wait_for(lambda: not alive(int(evidence["stdout"])))


def test_a_connection_lost_between_the_end_of_the_output_and_the_status(connection, monkeypatch):
    def lose(channel, _message):
        channel.eof_received = True
        channel.get_transport().close()

    handlers = paramiko.Transport._channel_handler_table
    with monkeypatch.context() as patched:
        patched.setitem(handlers, MSG_CHANNEL_REQUEST, lose)
        with pytest.raises(HostUnreachable, match="dropped during a command"):
            connection[0].run("true", check=False)


@pytest.mark.parametrize("name", ["KILL", "STOP"])
def test_an_idle_connection_that_is_lost_or_hangs_is_replaced(connection, monkeypatch, name):
    monkeypatch.setattr("labkit.hosts.host.OPEN_SECONDS", 1.0)
    host, pids = connection
    HERE.run("kill", f"-{name}", *pids)
    assert host.run("echo", "by another").stdout == "by another\n"


def test_keys_that_are_unknown_changed_or_wrong(server, tmp_path):
    known, port = tmp_path / "known_hosts", f"[127.0.0.1]:{server.port} "
    others = [make_key(tmp_path / kind, kind).strip() for kind in ("ed25519", "ecdsa")]
    own = " ".join(server.host().known_hosts.read_text().split()[1:3])
    # A key of the address alone does not count where another one is known for the port.
    refused = ["", *(port + key for key in others), f"{port}{others[0]}\n127.0.0.1 {own}"]
    refused += [f"{port}{own}\n@revoked * {own}", f"{port}{others[0]} a\x0c{port}{own}"]
    for text in refused:
        known.write_text(text)
        with pytest.raises(HostUnreachable, match="not known, has changed") as caught:
            server.host(known_hosts=known).run("true")
        assert str(known) in caught.value.remedy and caught.value.lasting
        assert known.read_text() == text
    # As for OpenSSH, a line that cannot be read is passed over, and one of several keys is enough.
    broken, either = f"# \xfc\n|1|abc= {own}\n", f"{port}{others[0]}\n{port}{own} a\x0c\x0cb"
    for text in (f"{port}ssh-ed25519 cut\n{either}", f"127.0.0.1 {own}"):
        known.write_text(broken + text, "latin-1")
        with closing(server.host(known_hosts=known)) as host:
            host.run("true")
    with pytest.raises(HostUnreachable, match="user and key"):
        server.host(key=tmp_path / "ed25519").run("true")


# Detached jobs.

#: Starts a daemon in a new session that ignores TERM, and writes its pid to a file.
DAEMON = """
setsid sh -c 'trap "" TERM; echo $$ >daemon.new; mv daemon.new daemon; exec sleep 300' &
until [ -e daemon ]; do sleep 0.02; done
"""


class Job:
    def __init__(self, host, argv, folder, label, **until):
        self.host, self.folder = host, str(folder)
        self.pid = host.call("start", folder=self.folder, argv=argv, label=label, **until)

    def running(self):
        return bool(self.host.call("leader", folder=self.folder))

    def stop(self, **options):
        self.host.call("stop", folder=self.folder, **options)

    def read(self, stream):
        return self.host.call("read", path=f"{self.folder}/{stream}")


@pytest.fixture
def mark():
    name = f"lkt-{os.getpid()}-{time.monotonic_ns()}/"
    yield name
    HERE.call("stop", prefix=name)


@pytest.fixture
def start(tmp_path, mark):
    def begin(*argv, **until):
        return Job(HERE, argv, tmp_path / "job", mark, **until)

    return begin


def ended(job):
    wait_for(lambda: not job.running())
    return job


def test_a_job_from_start_to_end(start, tmp_path):
    text = 'echo "$1 $X"; echo err >&2; umask; cat; until [ -e go ]; do sleep 0.02; done'
    before = os.umask(0o022)
    try:
        job = start("env", "X=x y", "sh", "-c", text, "sh", "a 'b\nc", until="0022")
    finally:
        os.umask(before)
    assert job.running() and alive(job.pid) and "0022" in job.read("stdout")
    # Other users neither list the folder nor read what a job prints.
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "job").iterdir()}
    assert modes == dict.fromkeys(("stdout", "stderr", "pid"), "0o600")
    assert oct((tmp_path / "job").stat().st_mode & 0o777) == "0o711"
    (tmp_path / "job" / "go").touch()
    ended(job).stop()
    assert (job.read("stdout"), job.read("stderr")) == ("a 'b\nc x y\n0022", "err")
    assert "No such file" in ended(start("labkit-no-such-program")).read("stderr")
    start("sleep", "300").stop(remove=True)
    assert not (tmp_path / "job").exists()


def test_a_job_outlives_its_connection(server, tmp_path):
    with closing(server.host()) as host:
        argv = ["sh", "-c", "sleep 0.5; echo done"]
        job = Job(host, argv, tmp_path / "job", "lkt-ssh")
        transport = host._connection.transport
        host.close()
        transport.join(10)
        assert not transport.is_alive()
        assert ended(job).read("stdout") == "done"


def test_a_daemon_is_ended_with_its_job_or_found_by_its_label(start, tmp_path, mark):
    file = tmp_path / "job" / "daemon"
    job = start("sh", "-c", DAEMON + "sleep 300")
    wait_for(file.exists)
    daemon = int(file.read_text())
    assert os.getsid(daemon) != os.getsid(job.pid)
    job.stop(grace=0.2)
    assert not alive(daemon)
    file.unlink()
    ended(start("sh", "-c", DAEMON))
    daemon = int(file.read_text())
    assert daemon in [pid for pid, _, _ in HERE.call("labelled", prefix=mark)]
    stopped = HERE.call("stop", prefix=mark, grace=0.2)
    assert [row for row in stopped if row.startswith(f"{daemon} {mark} ")]
    assert not alive(daemon)
    assert HERE.call("labelled", prefix=mark) == HERE.call("stop", prefix=mark) == []


def test_processes_of_others_are_left_alone(start, tmp_path, mark):
    job = ended(start("true"))
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:
        (tmp_path / "job" / "pid").write_text(f"{other.pid} 1")  # it was used again
        assert not job.running()
        job.stop()
        assert other.poll() is None
        other.kill()
    labels = (mark, mark.replace("lkt-", "lkt-other-"), f"{mark}a.b/")
    ours, theirs, odd = (
        Job(HERE, ["sleep", "300"], tmp_path / str(number), label)
        for number, label in enumerate(labels)
    )
    assert HERE.call("stop", prefix=mark + "axb") == []
    assert len(HERE.call("stop", prefix=mark + "a.b")) == 1 and not odd.running()
    HERE.call("stop", prefix=mark)
    assert not ours.running() and theirs.running()
    theirs.stop()

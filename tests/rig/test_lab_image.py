"""The laboratory as an image: built by an engine of the lab, it answers a question in itself."""

from functools import partial

import pytest

from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.paths import SHIPPED
from labkit.rig import images, locked, netns

#: With the machine's own certificates, which its index of Python packages may need.
BASE = f"FROM {images.BASE}\nCOPY . /usr/local/share/ca-certificates/\n"
BUILD = ("build", "--network=host", "--cgroup-parent=/labkit", "--build-arg=PIP_INDEX_URL")
RUN = ("run", "--rm", "--network=host", "--volume=/var/lib/labkit", "--cgroup-parent=/labkit")
#: As --privileged, which is refused where the machine itself lacks a capability.
PRIVILEGES = ["--cap-add=ALL", "--device=/dev", "--device-cgroup-rule=a *:* rwm"]
PRIVILEGES += [f"--security-opt={n}=unconfined" for n in ("seccomp", "apparmor", "systempaths")]
ASK = """
for place in /sys $(grep -o '/sys/fs/cgroup[^ ]*' /proc/self/mounts); do
    mount -o remount,bind,rw "$place"
done
tini -- .venv/bin/labkit ask rps
grep -o "inside a container" reports/65-rps.html
"""


@pytest.mark.rig
@pytest.mark.slow
def test_a_question_is_answered_in_a_container():
    local, tag, base = Host(), "labkit/lab:test", "labkit/lab:base"
    known, has = (local.run("setpriv", option).stdout for option in ("--list-caps", "--dump"))
    lacking = {*known.split()} - {*has.partition("bounding set: ")[2].split()[0].split(",")}
    with locked(patience=900), netns.building_daemon() as socket:
        images.ensure_base(Target(local, "", socket))
        env = {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}
        docker = partial(local.run, "docker", env=env, timeout=900)
        docker("build", "--tag", base, "--file=-", "/usr/local/share/ca-certificates", input=BASE)
        file = ("--file", str(SHIPPED / "containers/lab/Dockerfile"), str(SHIPPED))
        docker(*BUILD, f"--build-arg=BASE={base}", "--tag", tag, *file)
        for options in (["--privileged"], PRIVILEGES + [f"--cap-drop={name}" for name in lacking]):
            tried = docker(*RUN, *options, images.BASE, "true", check=False)
            if tried.status == 0:
                break
        else:
            pytest.skip(f"the engine may not run it here: {tried.stderr.strip()}")
        answered = docker(*RUN, *options, "--entrypoint=sh", tag, "-euc", ASK, check=False)
        docker("image", "rm", tag, base)
    answer = answered.check().stdout
    assert "with RPS" in answer and "65-rps.html" in answer and "inside a container" in answer

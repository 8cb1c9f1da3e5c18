"""The laboratory as an image: built by an engine of the lab, it answers a question in itself."""

from functools import partial

import pytest

from labkit.hosts import LocalHost
from labkit.paths import SHIPPED
from labkit.rig import images, locked, netns


@pytest.mark.rig
def test_a_question_is_answered_in_a_container():
    local, tag = LocalHost(), "labkit/lab:test"
    with locked(patience=900), netns.building_daemon() as socket:
        images.ensure_base(local, socket)
        env = {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}
        docker = partial(local.run, "docker", env=env, timeout=900)
        run = ("run", "--rm", "--privileged", "--network", "host")
        tried = docker(*run, images.BASE, "true", check=False)
        if tried.status != 0:
            reason = tried.stderr.strip().splitlines()[0]
            pytest.skip(f"this machine runs no privileged container: {reason}")
        file = ("--file", str(SHIPPED / "containers/lab/Dockerfile"))
        docker("build", "--network", "host", "--tag", tag, *file, str(SHIPPED))
        answered = docker(*run, "--volume", "/var/lib/labkit", tag, "ask", "rps")
    assert "with RPS" in answered.stdout and "65-rps.html" in answered.stdout

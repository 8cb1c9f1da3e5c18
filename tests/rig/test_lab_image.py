"""The laboratory as an image: built by an engine of the lab, it answers a question in itself."""

import pytest

from labkit.hosts import LocalHost
from labkit.paths import SHIPPED
from labkit.rig import images, locked, netns

pytestmark = pytest.mark.rig


@pytest.fixture
def socket():
    """An engine that runs privileged containers."""
    local = LocalHost()
    with locked(patience=900), netns.building_daemon() as found:
        images.ensure_base(local, found)
        env = {"DOCKER_HOST": found}
        argv = ("docker", "run", "--rm", "--privileged", "--network", "host", images.BASE, "true")
        tried = local.run(*argv, env=env, check=False)
        if tried.status != 0:
            reason = tried.stderr.strip().splitlines()[0]
            pytest.skip(f"this machine runs no privileged container: {reason}")
        yield found


def test_a_question_is_answered_in_a_container(socket):
    env, tag = {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}, "labkit/lab:test"
    build = ("docker", "build", "--network", "host", "--tag", tag, "--file")
    local, patient = LocalHost(), {"env": env, "timeout": 900}
    local.run(*build, str(SHIPPED / "containers/lab/Dockerfile"), str(SHIPPED), **patient)
    run = ("docker", "run", "--rm", "--privileged", "--network", "host")
    answered = local.run(*run, "--volume", "/var/lib/labkit", tag, "ask", "rps", **patient)
    assert "with RPS" in answered.stdout and "65-rps.html" in answered.stdout

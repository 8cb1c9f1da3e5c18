"""The sysfs of another network namespace: where the devices of a container are seen from outside.

What sysfs shows of devices is what the network namespace has in which it was mounted. The rig's
hosts have theirs where `Site.sysfs` says; a container has its own mounted read-only, or not at all.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.errors import RigError
from labkit.hosts.base import Host, script
from labkit.hosts.jobs import start_job

_HOLD = r"""
mount -t sysfs sysfs /sys
exec sleep infinity
"""
_STANDS = r"""
for try in $(seq 200); do
    [ -d "/proc/$1" ] || exit 3
    read -r name <"/proc/$1/comm" || exit 3
    [ "$name" != sleep ] || exit 0
    sleep 0.01
done
exit 4
"""


@contextmanager
def own_sysfs(host: Host, namespace: int | str, *, directory: str, label: str) -> Iterator[str]:
    """Yield where, on the host, the sysfs of another network namespace is.

    A container has its own mounted read-only, or not at all. Here a sleeping process joins the
    namespace and mounts it in a mount namespace of its own, which the host reaches through that
    process; nothing is mounted on the host, and nothing is left once the process has ended. Levers
    set there go into the host's journal like any others. So this is the outer of two contexts::

        with own_sysfs(host, pid, directory=..., label=...) as sysfs, Tuning(host, label) as tuning:
            rps(tuning, "eth0", "0-1", sysfs=sysfs)

    After a kill -9 the process is still there, and `labkit.hosts.restore` finds the levers; where
    it has been ended first, they are gone with their namespace or stay until that goes.

    Parameters
    ----------
    host : Host
        Where the namespace is.
    namespace : int or str
        A process that lives in it, or the path of a file that stands for it, such as
        ``/run/docker/netns/...`` of an overlay network.
    directory : str
        Of the process's job; made, and removed.
    label : str
        By which `labkit clean` finds it.

    Raises
    ------
    RigError
        The namespace cannot be joined, or its sysfs not be mounted.
    """
    path = f"/proc/{namespace}/ns/net" if isinstance(namespace, int) else namespace
    argv = ["nsenter", f"--net={path}", "unshare", "--mount", *script(_HOLD)]
    job = start_job(host, argv, directory=directory, label=label)
    try:
        if host.run(*script(_STANDS, str(job.pid)), check=False).status != 0:
            raise RigError(
                "the sysfs of a network namespace cannot be reached",
                where=f"host {host.name}, {path}",
                why=job.stderr().strip()[-400:],
                remedy="this needs root, nsenter and unshare (util-linux) on the host",
            )
        yield posixpath.join("/proc", str(job.pid), "root", "sys")
    finally:
        job.stop()
        host.run("rm", "-rf", "--", directory)

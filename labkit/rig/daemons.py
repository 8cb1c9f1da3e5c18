"""A Docker daemon for each storage driver, beside the lab's own engine.

Each has its own data, which stays between runs, and its own places for everything else; all are in
the network namespace of the system under test, so that a container on the host's network is where
the engine's own would be. One with the driver that the engine has too runs as well: storages are
then compared between daemons that differ in nothing else, and what studies load into them goes
with their data, by one command.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.hosts import Job, LocalHost, script, start_job, stop_labelled
from labkit.rig import ending, engine, netns

#: Label of the daemons' processes.
LABEL = "labkit-storage"
#: Size of the file that holds btrfs; it is sparse, and takes what is written to it.
BTRFS_SIZE = "64G"
_PREFIX = "storage-"

# The file system is made beside and moved there, so that one that was not finished is not used.
_BTRFS = """
file=$1 place=$2 size=$3
mkdir -p "$place"
if mountpoint -q "$place"; then exit 0; fi
if [ ! -e "$file" ]; then
    rm -f "$file.new"
    truncate -s "$size" "$file.new"
    mkfs.btrfs --quiet "$file.new"
    mv "$file.new" "$file"
fi
mount -o loop "$file" "$place"
"""

# A daemon without a bridge removes the interface of this name as it starts, whosever it is: the
# lab's engine would publish no port any more. So it goes by another name until all of them stand.
_HIDE = """
if ip link show docker0 >/dev/null 2>&1; then
    ip link set docker0 down
    ip link set docker0 name "$1"
fi
"""
_SHOW = """
if ip link show "$1" >/dev/null 2>&1; then
    ip link set "$1" name docker0
    ip link set docker0 up
fi
"""
_HIDDEN = "labkit-docker0"


def socket(driver: str) -> str:
    """Return where the daemon with a driver listens, as ``DOCKER_HOST`` wants it."""
    return f"unix://{netns.DIRECTORY}/{_PREFIX}{driver}.sock"


def data_root(driver: str) -> Path:
    """Return where the daemon with a driver keeps images and containers."""
    return engine.STORAGES / driver


@contextmanager
def running(local: LocalHost, drivers: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run a daemon for each driver; yields their sockets by driver.

    Raises
    ------
    RigError
        One does not answer, with its log.
    """
    with ExitStack() as stack:
        bridge = stack.enter_context(ExitStack())
        local.run(*netns.inside("sut"), *script(_HIDE, _HIDDEN))
        bridge.callback(local.run, *netns.inside("sut"), *script(_SHOW, _HIDDEN))
        for driver in drivers:
            stack.callback(_release, driver)
            if driver == "btrfs":
                file = engine.STORAGES / "btrfs.img"
                local.run(*script(_BTRFS, str(file), str(data_root(driver)), BTRFS_SIZE))
            directory = netns.DIRECTORY / f"{_PREFIX}{driver}-daemon"
            stack.callback(_stop, local, driver, Job(local, str(directory)))
            start_job(local, _command(driver), directory=str(directory), label=LABEL)
        for driver in drivers:
            log = netns.DIRECTORY / f"{_PREFIX}{driver}-daemon" / "stderr"
            engine.await_daemon(local, socket(driver), log)
            # It remembers those of a killed campaign, which would come back with it.
            engine.remove_containers(local, socket(driver))
        bridge.close()
        yield {driver: socket(driver) for driver in drivers}


def _command(driver: str) -> tuple[str, ...]:
    options = engine.daemon_options(_PREFIX + driver, socket(driver), data_root(driver))
    return (
        *netns.inside("sut"),
        *("dockerd", *options, "--storage-driver", driver, *engine.WITHOUT_NETWORK),
    )


def _stop(local: LocalHost, driver: str, job: Job) -> None:
    engine.remove_containers(local, socket(driver))
    job.stop(grace=10.0)


def _release(driver: str) -> None:
    """Unmount what a daemon left, and the file system that it was on."""
    ending.unmount((str(data_root(driver)),))


def standing() -> list[str]:
    """Return the drivers whose daemon was begun and not taken down."""
    return sorted(
        path.name.removeprefix(_PREFIX).removesuffix("-daemon")
        for path in netns.DIRECTORY.glob(f"{_PREFIX}*-daemon")
        if (path / "lock").exists() and _is_left(path)
    )


def _is_left(directory: Path) -> bool:
    driver = directory.name.removeprefix(_PREFIX).removesuffix("-daemon")
    pidfile = netns.DIRECTORY / f"{_PREFIX}{driver}.pid"
    return pidfile.exists() or bool(ending.mounted((str(data_root(driver)),)))


def take_down(local: LocalHost) -> list[str]:
    """Take down the daemons of a dead campaign on a standing rig; return them in words."""
    found = standing()
    for driver in found:
        engine.remove_containers(local, socket(driver))
    if found:
        ending.stop_engine(f"{_PREFIX}*.pid")
    # Also one that was begun only: it stands nowhere yet, and would go on in removed folders.
    stop_labelled(local, LABEL)
    if found:
        # Containers whose daemon was killed; those of the engine are removed already.
        ending.kill(ending.grouped)
        ending.remove_groups(keep_roots=True)
    ending.unmount((str(engine.STORAGES),))
    for path in netns.DIRECTORY.glob(f"{_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return [f"daemon with the storage driver {driver}" for driver in found]

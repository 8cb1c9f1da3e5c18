"""A container's storage: what is mounted at ``/data``.

The engine of a storage driver needs nothing more: ``/data`` is then in the container's own layer.
A mount shows what the image has there, as a named volume does when it is first used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from labkit.errors import PlacementError
from labkit.hosts import Host, Job, script, start_job
from labkit.hosts.target import Image, Storage, Target

#: Where containers find what is measured.
DATA = "/data"

# Filled by a container of the image itself, so that owners and modes are as they are there. What
# was not finished is not used: it has another name, or goes again.
_BIND = """
place=$1 image=$2 parent=$3 label=$4
[ ! -d "$place" ] || exit 0
rm -rf "$place.new"
mkdir -p "$place.new"
docker run --rm --pull never --network none --cgroup-parent "$parent" --label "labkit=$label" \\
    --mount "type=bind,src=$place.new,dst=/labkit-data" "$image" \\
    sh -c 'if [ -d /data ]; then cp -a /data/. /labkit-data; fi'
sync -f "$place.new"
mv "$place.new" "$place"
"""
_VOLUME = """
name=$1 image=$2 parent=$3 label=$4 disk=$5
docker volume inspect "$name" >/dev/null 2>&1 && exit 0
docker volume create --label labkit=storage --label "labkit.disk=$disk" "$name" >/dev/null
docker run --rm --pull never --network none --cgroup-parent "$parent" --label "labkit=$label" \\
    --mount "type=volume,src=$name,dst=/data" "$image" sync -f /data ||
    { docker volume rm "$name" >/dev/null; exit 1; }
"""
_UNION_UP = """
tries=0
while ! mountpoint -q "$1"; do
    tries=$((tries + 1))
    [ "$tries" -lt 250 ] || { echo "the union is not mounted" >&2; exit 1; }
    sleep 0.02
done
"""
# Asked of the kernel's list: a look at the mount itself would wait for one that hangs.
_UNION_DOWN = """
if grep -qF " $1/union " /proc/self/mounts; then umount "$1/union" || umount -l "$1/union"; fi
rm -rf --one-file-system -- "$1"
"""


def data_options(target: Target, image: Image, label: str) -> list[str]:
    """Create what the storage needs, and return the options of ``docker run`` that mount it."""
    storage = target.storage
    if storage is None or storage.name == storage.driver:
        return []
    source = data_source(storage, image, label)
    if storage.name == "unionfs-fuse":
        _unite(target, storage, image, label)
    else:
        text = _VOLUME if storage.name == "volume" else _BIND
        # The trial's label names its process: another user's sweep leaves a living one's alone.
        options = (image.reference, target.cgroup_parent, label, storage.directory)
        argv = script(text, source, *options)
        _try(target.host, f"{storage.name} for {image.name}", argv, storage)
    kind = "volume" if storage.name == "volume" else "bind"
    return ["--mount", f"type={kind},src={source},dst={DATA}"]


def data_source(storage: Storage, image: Image, label: str) -> str:
    """Return what is mounted: a directory, or the name of a volume; "" for a driver's own layer."""
    if storage.name == storage.driver:
        return ""
    name = f"{image.name}-{image.digest.rpartition(':')[2][:12]}"
    # Users of one engine have a disk's directory each, and volumes that do not meet.
    whose = hashlib.sha256(storage.directory.encode()).hexdigest()[:6]
    places = {
        "volume": f"labkit-{whose}-{name}",
        "bind": f"{storage.directory}/bind/{name}",
        "unionfs-fuse": f"{_union(storage, label)}/union",
    }
    return places[storage.name]


def release(target: Target, label: str) -> None:
    """Remove what was made for one container only: its union, if there is one."""
    if target.storage is None or target.storage.name != "unionfs-fuse":
        return
    place = _union(target.storage, label)
    Job(target.host, f"{place}/job").stop()
    target.host.run(*script(_UNION_DOWN, place))


def _union(storage: Storage, label: str) -> str:
    return f"{storage.directory}/unions/{label}"


def _unite(target: Target, storage: Storage, image: Image, label: str) -> None:
    """Mount a union of the image's layers, read-only, below a fresh branch that is written to."""
    place = _union(storage, label)
    target.host.run("mkdir", "-p", f"{place}/written", f"{place}/union")
    branches = [f"{place}/written=RW"]
    branches += [f"{one}=RO" for one in reversed(storage.branches.get(image.name, ()))]
    argv = ["unionfs", "-f", "-o", "cow,allow_other,use_ino", ":".join(branches), f"{place}/union"]
    job = start_job(target.host, argv, directory=f"{place}/job", label=label)
    try:
        _try(target.host, f"union for {image.name}", script(_UNION_UP, f"{place}/union"), storage)
    except PlacementError as error:
        raise PlacementError(error.what, where=error.where, why=job.stderr()[-800:]) from error


def _try(host: Host, what: str, argv: Sequence[str], storage: Storage) -> None:
    result = host.run(*argv, env={"DOCKER_HOST": storage.engine}, timeout=1800, check=False)
    if result.status != 0:
        raise PlacementError(
            f"cannot create the {what}",
            where=f"host {host.name}",
            why=result.stderr.strip()[-800:],
        )

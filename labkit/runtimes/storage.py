"""A container's storage: what is mounted at ``/data``.

With a storage driver, nothing is mounted: ``/data`` is in the container's own layer. A mount
contains the image's files of ``/data``, as Docker fills a new volume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from labkit.errors import PlacementError
from labkit.hosts import Host, Job, script, start_job
from labkit.hosts.target import Image, Storage, Target

#: The directory whose storage is measured.
DATA = "/data"

# A container of the image copies the files, so that owners and modes are the same. An unfinished
# copy has another name, and an unfinished volume is removed.
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
# The kernel's list is read, because looking at a mount that hangs would hang too.
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
        # By this label, another user's `labkit clean` leaves a running container alone.
        options = (image.reference, target.cgroup_parent, label, storage.directory)
        argv = script(text, source, *options)
        _create(target.host, f"{storage.name} for {image.name}", argv, storage)
    kind = "volume" if storage.name == "volume" else "bind"
    return ["--mount", f"type={kind},src={source},dst={DATA}"]


def data_source(storage: Storage, image: Image, label: str) -> str:
    """Return what is mounted: a directory or a volume's name; "" for a storage driver."""
    if storage.name == storage.driver:
        return ""
    name = f"{image.name}-{image.digest.rpartition(':')[2][:12]}"
    # Rigs that share an engine have different directories, and so different volumes.
    owner = hashlib.sha256(storage.directory.encode()).hexdigest()[:6]
    sources = {
        "volume": f"labkit-{owner}-{name}",
        "bind": f"{storage.directory}/bind/{name}",
        "unionfs-fuse": f"{_union(storage, label)}/union",
    }
    return sources[storage.name]


def release(target: Target, label: str) -> None:
    """Remove the container's union, if it has one."""
    if target.storage is None or target.storage.name != "unionfs-fuse":
        return
    directory = _union(target.storage, label)
    Job(target.host, f"{directory}/job").stop()
    target.host.run(*script(_UNION_DOWN, directory))


def _union(storage: Storage, label: str) -> str:
    return f"{storage.directory}/unions/{label}"


def _unite(target: Target, storage: Storage, image: Image, label: str) -> None:
    """Mount a union of the image's layers, read-only, below an empty writable branch."""
    directory = _union(storage, label)
    union = f"{directory}/union"
    target.host.run("mkdir", "-p", f"{directory}/written", union)
    branches = [f"{directory}/written=RW"]
    branches += [f"{layer}=RO" for layer in reversed(storage.branches.get(image.name, ()))]
    argv = ["unionfs", "-f", "-o", "cow,allow_other,use_ino", ":".join(branches), union]
    job = start_job(target.host, argv, directory=f"{directory}/job", label=label)
    try:
        _create(target.host, f"union for {image.name}", script(_UNION_UP, union), storage)
    except PlacementError as error:
        raise PlacementError(error.what, where=error.where, why=job.stderr()[-800:]) from error


def _create(host: Host, what: str, argv: Sequence[str], storage: Storage) -> None:
    result = host.run(*argv, env={"DOCKER_HOST": storage.engine}, timeout=1800, check=False)
    if result.status != 0:
        raise PlacementError(
            f"cannot create the {what}",
            where=f"host {host.name}",
            why=result.stderr.strip()[-800:],
        )

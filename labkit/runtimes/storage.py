"""A container's storage: what is mounted at ``/data``.

With the engine's own driver nothing is mounted: ``/data`` is in the container's own layer. A mount
contains the image's files of ``/data``, as Docker fills a new volume.
"""

from __future__ import annotations

from labkit.hosts import script
from labkit.hosts.target import Image, Storage, Target
from labkit.placement import UNIONS

#: The directory whose storage is measured.
DATA = "/data"

# The directory gets its name last, so that an unfinished copy is never used.
_BIND = """
place=$1 image=$2
[ ! -d "$place" ] || exit 0
rm -rf "$place.new"
mkdir -p "$place.new"
id=$(docker create --label labkit=storage "$image" true)
trap 'docker rm "$id" >/dev/null' EXIT
docker export "$id" | tar -x -C "$place.new" --strip-components 1 data
mv "$place.new" "$place"
"""
# Read-only, the files of /data in the layers that the engine's own driver keeps, the uppermost
# first; above them an empty directory to write to.
_MOUNT = """
place=$1 image=$2 kind=$3 with=.GraphDriver.Data layers=
for layer in $(docker image inspect --format "{{$with.UpperDir}}:{{$with.LowerDir}}" "$image" |
    tr : ' '); do
    [ ! -d "$layer/data" ] || layers=$layers:$layer/data
done
mkdir -p "$place/written" "$place/work" "$place/union"
case $kind in
fuse-overlayfs)
    over="upperdir=$place/written,workdir=$place/work"
    fuse-overlayfs -o "lowerdir=${layers#:},$over" "$place/union"
    ;;
aufs)
    read_only=$(echo "$layers" | sed 's/:[^:]*/&=ro/g')
    mount -t aufs -o "br=$place/written=rw$read_only" none "$place/union"
    ;;
esac
"""
_UNMOUNT = """
! grep -qF " $1/union " /proc/self/mounts || umount "$1/union" || umount --lazy "$1/union"
rm -rf --one-file-system -- "$1"
"""


def data_options(target: Target, image: Image, label: str) -> list[str]:
    """Create what the storage needs, and return the options of ``docker run`` that mount it."""
    storage = target.storage
    if storage is None or storage.name == storage.driver:
        return []
    source = data_source(storage, image, label)
    if storage.name == "volume":
        return ["--mount", f"type=volume,dst={DATA}"]  # anonymous: it goes with its container
    text, place = (_MOUNT, _union(storage, label)) if storage.name in UNIONS else (_BIND, source)
    argv = script(text, place, image.reference, storage.name)
    target.host.run(*argv, env={"DOCKER_HOST": str(target.engine)}, timeout=600)
    return ["--mount", f"type=bind,src={source},dst={DATA}"]


def data_source(storage: Storage, image: Image, label: str) -> str:
    """Return what is mounted, or the engine's folder of it; "" for the engine's driver."""
    name = f"{image.name}-{image.digest.rpartition(':')[2][:12]}"
    sources = {"bind": f"{storage.directory}/bind/{name}", "volume": "volumes"}
    sources |= dict.fromkeys(UNIONS, f"{_union(storage, label)}/union")
    return sources.get(storage.name, "")


def _union(storage: Storage, label: str) -> str:
    return f"{storage.directory}/unions/{label}"


def release(target: Target, label: str) -> None:
    """Remove the container's union, if it has one."""
    if target.storage and target.storage.name in UNIONS:
        target.host.run(*script(_UNMOUNT, _union(target.storage, label)))

"""nginx: a web server with two files, of 1 KB and of 1 MB (1,024 and 1,048,576 bytes).

Files and configuration are made where it starts, below ``/tmp``; that takes some milliseconds. It
logs no request, keeps connections open for any number of them, and sends files by ``sendfile``.
"""

from __future__ import annotations

from labkit.hosts import Host, script
from labkit.placement import Workload
from labkit.tools.base import one_of, whole
from labkit.tools.parsing import version

PORT = 8080
#: Bytes of each file.
FILES = {"1k": 1024, "1m": 1_048_576}

_START = r"""
folder=$1 config=$2
shift 2
mkdir -p "$folder/html"
while [ $# -gt 0 ]; do
    head -c "$2" /dev/zero | tr '\0' x >"$folder/html/$1.html"
    shift 2
done
printf '%s\n' "$config" >"$folder/nginx.conf"
exec nginx -e stderr -c "$folder/nginx.conf"
"""

_CONFIG = """
daemon off;
pid {folder}/nginx.pid;
user www-data;
worker_processes {workers};
events {{ worker_connections 4096; }}
http {{
    access_log off;
    log_not_found off;
    default_type text/html;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    server {{
        listen 0.0.0.0:{port};
        root {folder}/html;
    }}
}}
"""


def probe(host: Host) -> str:
    """Return nginx's version on the host; raise `ToolMissing` where it is not."""
    return version(host, ("nginx", "-v"), r"nginx/(\S+)")


def server(*, workers: int = 1, port: int = PORT, image: str = "apps") -> Workload:
    """Return the server in the foreground; its main process holds the socket.

    Parameters
    ----------
    workers : int
        Processes that answer.
    port : int
        Where it listens.
    image : str
        The image that holds it.
    """
    whole("nginx", workers=workers, port=port)
    folder = f"/tmp/labkit-nginx-{port}"
    config = _CONFIG.format(folder=folder, workers=workers, port=port)
    sizes = [text for name, size in FILES.items() for text in (name, str(size))]
    return Workload(tuple(script(_START, folder, config, *sizes)), port, "tcp", image)


def url(address: str, file: str, port: int = PORT) -> str:
    """Return where a file is to be had."""
    one_of("file", file, tuple(FILES))
    return f"http://{address}:{port}/{file}.html"

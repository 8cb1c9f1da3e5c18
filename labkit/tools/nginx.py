"""nginx: a web server with two files, of 1 KB and of 1 MB (1,024 and 1,048,576 bytes).

Files and configuration are created when it starts, which takes some milliseconds: in its work
folder, or in ``/run`` of a container or chroot. Other users can write to neither.
It logs no request, keeps connections open, and sends files by ``sendfile``.
"""

from __future__ import annotations

from labkit.hosts import script
from labkit.placement import Workload
from labkit.tools.base import one_of

PORT = 8080
#: Bytes of each file.
FILES = {"1k": 1024, "1m": 1_048_576}

_START = r"""
[ "$PWD" != / ] || cd /run
folder=$PWD/nginx-$1 config=$2
shift 2
mkdir -p "$folder/html"
while [ $# -gt 0 ]; do
    head -c "$2" /dev/zero | tr '\0' x >"$folder/html/$1.html"
    shift 2
done
printf '%s\n' "$config" >"$folder/nginx.conf"
exec nginx -e stderr -p "$folder" -c nginx.conf
"""

_CONFIG = """
daemon off;
pid nginx.pid;
user www-data;
worker_processes 1;
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
        root html;
    }}
}}
"""


def server() -> Workload:
    """Return the server in the foreground, with one worker; its main process holds the socket."""
    sizes = [text for name, size in FILES.items() for text in (name, str(size))]
    argv = script(_START, str(PORT), _CONFIG.format(port=PORT), *sizes)
    return Workload(tuple(argv), PORT, "tcp", "apps")


def url(address: str, file: str) -> str:
    """Return the address of a file."""
    one_of("file", file, tuple(FILES))
    return f"http://{address}:{PORT}/{file}.html"

"""nginx: a web server with two files, of 1 KB and of 1 MB (1,024 and 1,048,576 bytes).

Files and configuration are created when it starts, which takes some milliseconds, in its work
folder, or in ``/run`` of a container. It logs no request, keeps connections open, and sends files
by ``sendfile``.
"""

from labkit.hosts import script
from labkit.placement import Workload

PORT = 8080
_START = r"""
[ "$PWD" != / ] || cd /run
head -c 1024 /dev/zero | tr '\0' x >1k.html
head -c 1048576 /dev/zero | tr '\0' x >1m.html
printf '%s\n' "$1" >nginx.conf
exec nginx -e stderr -p "$PWD" -c nginx.conf
"""
_CONFIG = f"""
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
    server {{ listen 0.0.0.0:{PORT}; root .; }}
}}
"""
#: In the foreground, with one worker; its main process holds the socket.
SERVER = Workload(tuple(script(_START, _CONFIG)), PORT, "tcp", "apps")


def url(address: str, file: str) -> str:
    """Return the address of a file, "1k" or "1m"."""
    return f"http://{address}:{PORT}/{file}.html"

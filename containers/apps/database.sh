# Make pgbench's database of a million accounts, on which `labkit.tools.pgbench` starts servers.
set -eu
ln -s /usr/lib/postgresql/*/bin/postgres /usr/local/bin/
ln -sf /usr/lib/postgresql/*/bin/pgbench /usr/local/bin/
install -d -o postgres -g postgres /srv/labkit
exec setpriv --reuid=postgres --regid=postgres --clear-groups sh -euc '
    PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
    database=/srv/labkit/postgresql
    initdb --auth=trust --locale=C.UTF-8 --no-sync --pgdata="$database"
    # Whoever reaches the server in the lab may use it.
    echo "host all all 0.0.0.0/0 trust" >>"$database/pg_hba.conf"
    # No log of the filling: the tables are made in the transaction that fills them.
    options="-c listen_addresses= -c unix_socket_directories=/tmp -c fsync=off"
    options="$options -c wal_level=minimal -c max_wal_senders=0"
    pg_ctl --pgdata="$database" --wait --silent --log=/tmp/log --options="$options" start
    pgbench --host=/tmp --initialize --scale=10 --quiet postgres
    pg_ctl --pgdata="$database" --wait --silent --mode=fast stop
    rm /tmp/log
'

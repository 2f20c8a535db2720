# Stands beside one server. $1 is the kind of server.
#
# Makes its directory and names it on stdout. Then reads process ids from stdin, one a line: the newest is that of the
# server; an empty line says that there is none. At the end of input, which comes when whoever writes there closes the
# pipe or dies of anything, it ends the server and all that the server has started, and removes the directory.
umask 077
trap '' INT TERM HUP QUIT
directory=$(mktemp -d "${TMPDIR:-/tmp}/idem-$1-XXXXXX") || exit 1
printf '%s\n' "$directory"
exec >/dev/null 2>&1

pid=
while read -r line; do pid=$line; done

family=
generation=$pid
while [ -n "$generation" ]; do
    # Stopped first, so that they start no more while their children are looked for.
    kill -s STOP $generation
    family="$family $generation"
    parents=$(echo $generation | tr ' ' '|')
    generation=$(grep -lE "^PPid:[[:space:]]+($parents)\$" /proc/[0-9]*/status | tr -dc '0-9\n')
done
[ -z "$family" ] || kill -s KILL $family

# Postgres has one segment of shared memory, which outlives processes that were killed. Its lock file names it.
lock=$directory/data/postmaster.pid
[ ! -f "$lock" ] || ipcrm -m "$(awk 'NR == 7 { print $2 }' "$lock")"
# A process that is ending may still write a file.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf "$directory" && exit
    sleep 0.1
done

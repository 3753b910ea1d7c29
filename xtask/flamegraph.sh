#!/bin/sh
# Draws flame graphs of a tunnel's client and server, which carry one TCP connection over one uplink at full speed:
# xtask/flamegraph.sh PROGRAM TOOLS FOLDER. PROGRAM is hawser, TOOLS/bin has inferno's programs, and FOLDER gets
# tunnel-client.svg and tunnel-server.svg. Needs root.
set -eu

hawser=$1 tools=$2 folder=$3
work=$(mktemp -d)
bench=''

clean() {
    if [ -n "$bench" ]; then
        kill "$bench" 2>/dev/null || true
        wait "$bench" || true
        # What the benchmark removes itself when it ends by itself.
        for name in '' client- server-; do
            ip netns delete "hawser-bench-$name$bench" 2>/dev/null || true
        done
    fi
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM HUP

die() {
    cat "$work/log" >&2
    echo "flamegraph: $*" >&2
    exit 1
}

# Prints the id of the benchmark's tunnel process with the role $1, once there is one.
process() {
    until pgrep -n -P "$bench" -f "tunnel $1 --config "; do
        kill -0 "$bench" 2>/dev/null || return 1
        sleep 0.05
    done
}

TMPDIR=$work "$hawser" lab bench --part tunnel --out "$work" >"$work/log" 2>&1 &
bench=$!
client=$(process client) || die 'the benchmark has ended'
server=$(process server) || die 'the benchmark has ended'
# Until the connection has its full rate. It lasts for four seconds.
sleep 1.5
perf record --quiet --event cpu-clock --freq 997 --call-graph dwarf,65528 --output "$work/perf" \
    --pid "$client,$server" -- sleep 2 2>"$work/log" || die 'cannot record'
for role in client server; do
    case $role in
    client) id=$client ;;
    server) id=$server ;;
    esac
    perf script --no-inline --pid "$id" --input "$work/perf" >"$work/stacks" 2>"$work/log" || die 'cannot read the record'
    "$tools/bin/inferno-collapse-perf" "$work/stacks" >"$work/folded" 2>"$work/log" || die 'cannot fold the stacks'
    "$tools/bin/inferno-flamegraph" --title "hawser tunnel $role" --colors rust --deterministic --minwidth 0.3 \
        "$work/folded" >"$work/tunnel-$role.svg" 2>"$work/log" || die 'cannot draw'
    chown --reference="$folder" "$work/tunnel-$role.svg"
    mv "$work/tunnel-$role.svg" "$folder"
done

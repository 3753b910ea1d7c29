#!/bin/sh
# Types the ten-minute start of the guide on two machines in QEMU, with packages of compiled programs:
# packaging/guide-test.sh PROGRAMS [GENERIC]. With GENERIC, `true` or `false`, the examples of the package say
# `generic_xdp = GENERIC`. Needs root, for debootstrap.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work_name=guide
# shellcheck source=packaging/machine/prepare.sh
. "$here/machine/prepare.sh"
"$here/build.sh" amd64 "$1" "$work/packages"
for name in publisher viewer; do
    cp -r "$here/machine/guide" "$work/$name"
    cp "$work/packages"/*.deb "$here/../docs/guide/ten-minutes.md" "$work/$name"
    echo $name >"$work/$name/name"
    if [ -n "${2-}" ]; then
        sed -i "s/^cp .*examples.*/&\nsed -i '\/^\\\\[node\\\\]\/a generic_xdp = $2' $name.toml/" "$work/$name/ten-minutes.md"
    fi
done
# Three cables between the machines.
listen='' connect=''
for cable in 1 2 3; do
    port=$((7300 + cable))
    listen="$listen socket,listen=127.0.0.1:$port"
    connect="$connect socket,connect=127.0.0.1:$port"
done
# shellcheck disable=SC2086 # one word per cable
"$here/machine/machine.sh" "$image" "$work/publisher" "$work/publisher.output" $listen &
publisher=$!
sleep 1
failed=''
# shellcheck disable=SC2086 # one word per cable
"$here/machine/machine.sh" "$image" "$work/viewer" "$work/viewer.output" $connect || failed=yes
wait $publisher || failed=yes
for name in publisher viewer; do
    echo "=== $name"
    cat "$work/$name.output"
done
[ -z "$failed" ] || { echo 'guide-test: failed' >&2; exit 1; }

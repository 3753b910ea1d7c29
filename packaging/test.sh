#!/bin/sh
# Installs, upgrades under traffic, removes and purges the packages of compiled programs on a fresh Debian in QEMU:
# packaging/test.sh PROGRAMS. Needs root, for debootstrap.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work_name='test'
# shellcheck source=packaging/machine/prepare.sh
. "$here/machine/prepare.sh"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../Cargo.toml" | head -n 1)
cp -r "$here/machine/packages" "$work/files"
"$here/build.sh" amd64 "$1" "$work/files/old" "$version"
# The next version has the same files.
mkdir "$work/files/new"
for package in "$work/files/old"/*.deb; do
    dpkg-deb -R "$package" "$work/next"
    sed -i "s/^Version: .*/Version: $version+next/" "$work/next/DEBIAN/control"
    dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/next" "$work/files/new" >/dev/null
    rm -r "$work/next"
done
if "$here/machine/machine.sh" "$image" "$work/files" "$work/output"; then
    cat "$work/output"
else
    cat "$work/output"
    echo 'package-test: failed' >&2
    exit 1
fi

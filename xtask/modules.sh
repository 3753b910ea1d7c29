#!/bin/sh
# Copies modules of a kernel that `setup.sh kernels` has unpacked into the root of a machine: xtask/modules.sh KERNEL VERSION ROOT
# PATTERN... Each PATTERN is a path below the kernel's modules: of a folder, or of modules.
set -eu

from=$1/linux/lib/modules/$2
to=$3/lib/modules/$2
root=$3
version=$2
shift 3
# shellcheck disable=SC2086 # the patterns
(cd "$from/kernel" && eval "find $* -name '*.ko'") | while read -r module; do
    install -D -m 644 "$from/kernel/$module" "$to/kernel/$module"
done
cp "$from/modules.order" "$from/modules.builtin" "$from/modules.builtin.modinfo" "$to"
/sbin/depmod -b "$root" "$version"

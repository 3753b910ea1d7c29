# shellcheck shell=sh
# For scripts of `packaging` that run machines, which set `here`, that folder, and `work_name`, the name of a test. Makes the empty
# directory `work` for the test, and the `image` of the machines.
target=${CARGO_TARGET_DIR:-$(dirname "$here")/target}
work=$target/package/$work_name
image=$target/package/machine
rm -rf "$work"
mkdir -p "$work"
"$here/machine/image.sh" "$target/kernel/trixie" "$image"

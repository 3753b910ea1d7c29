#!/bin/sh
# Prints the path of an ffmpeg with libvmaf, for HAWSER_VMAF. Takes it from the package imageio-ffmpeg of PyPI, in a Python
# environment in the target directory that is created at the first run.
set -eu

version=0.8.1
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
environment=$(realpath "$target")/vmaf

program() {
    "$environment/bin/python" -c "
import imageio_ffmpeg
assert imageio_ffmpeg.__version__ == '$version'
print(imageio_ffmpeg.get_ffmpeg_exe())" 2>/dev/null
}
if ! program; then
    echo "vmaf: creating a Python environment in $environment" >&2
    python3 -m venv --clear "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "imageio-ffmpeg==$version" >&2
    program
fi

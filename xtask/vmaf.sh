#!/bin/sh
# Prints the path of an ffmpeg with libvmaf, for HAWSER_VMAF, which is that of the package imageio-ffmpeg of PyPI.
set -eu

environment=$("$(dirname "$0")/python.sh" imageio-ffmpeg 0.8.1)
"$environment/bin/python" -c 'import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_exe())'

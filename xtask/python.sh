#!/bin/sh
# Prints the path of a Python environment in the target directory that has a version of a package of PyPI.
# Usage: xtask/python.sh PACKAGE VERSION. Creates the environment at the first run.
set -eu

package=${1:?usage: xtask/python.sh PACKAGE VERSION}
version=${2:?usage: xtask/python.sh PACKAGE VERSION}
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
environment=$(realpath "$target")/python/$package

is_installed() {
    [ "$("$environment/bin/python" -c "from importlib.metadata import version; print(version('$package'))" 2>/dev/null)" = "$version" ]
}
if ! is_installed; then
    echo "python: installing $package $version in $environment" >&2
    if ! python3 -m venv --clear "$environment" ||
        ! "$environment/bin/pip" install --quiet --disable-pip-version-check "$package==$version" >&2; then
        echo "python: cannot install $package from PyPI" >&2
        exit 1
    fi
fi
echo "$environment"

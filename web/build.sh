#!/bin/sh
# Builds the viewer's page into media/page/dist, which the programs that are built next contain. Needs Node 20.19 or later, npm
# and the Rust target wasm32-unknown-unknown. With `--check`, says what is missing of Node and npm; with `--clean`, removes the page.
set -eu
cd "$(dirname "$0")/.."

case "${1-}" in
    '' | --check) ;;
    --clean)
        rm -rf media/page/dist/* web/viewer/public web/viewer/node_modules
        exit
        ;;
    *)
        echo "usage: $0 [--check | --clean]" >&2
        exit 2
        ;;
esac

is_recent='const [major, minor] = process.versions.node.split(".").map(Number); process.exit(major * 100 + minor < 2019 ? 1 : 0)'
if ! command -v npm >/dev/null || ! node --eval "$is_recent"; then
    echo 'the page of the viewer needs npm and Node 20.19 or later' >&2
    exit 1
fi
[ "${1-}" != --check ] || exit 0

# WASM has no other way to use wide registers than to require them; every browser with WebTransport has them.
RUSTFLAGS="-Ctarget-feature=+simd128 --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=crates --remap-path-prefix=$PWD=hawser" \
    cargo rustc --locked --package hawser-decoder --lib --crate-type cdylib \
    --target wasm32-unknown-unknown --profile web
rm -f media/page/dist/*
mkdir -p web/viewer/public
cp "${CARGO_TARGET_DIR:-target}/wasm32-unknown-unknown/web/hawser_decoder.wasm" web/viewer/public/decoder.wasm

cd web/viewer
dist=../../media/page/dist
# Only when the versions change.
[ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-fund --no-audit --loglevel error
npm run --silent build

bytes=$(cat "$dist"/* | gzip | wc -c)
if [ "$bytes" -gt 600000 ]; then
    echo "the page has $bytes bytes compressed; 600000 are allowed" >&2
    exit 1
fi

# The licences of what the page contains.
about='const { name, version, license } = require(`${process.argv[1]}/package.json`);
if (!/^(MIT|0BSD|\(MIT OR Apache-2.0\))$/.test(license)) throw new Error(`${name}: the licence ${license} is not known`);
console.log(`${name} ${version}, ${license}\n`);'
npm ls --omit=dev --all --parseable | tail -n +2 | sort | while read -r package; do
    node --eval "$about" "$package"
    for licence in "$package"/LICENSE*; do
        [ ! -e "$licence" ] || cat "$licence"
    done
    echo
done >licences.txt

# As the files are sent. The licences come last: they say that all is there.
gzip -9n "$dist"/*
gzip -9n licences.txt
mv licences.txt.gz "$dist"

#!/bin/sh
# Installs what `make interop` compares with into target/tools: moq-relay and moq (the crates moq-relay and moq-cli) and
# the page with @moq/net. Chromium, Node and npm are those of the system. Does nothing for what is there.
set -eu

tools=$1
here=$(dirname "$0")

# install_crate CRATE VERSION PROGRAM
install_crate() {
    [ ! -x "$tools/bin/$3" ] || return 0
    echo "interop: builds $1 $2 in $tools"
    # Its optimised build takes several times as long.
    cargo install --quiet --debug --root "$tools" --target-dir "$tools/build" \
        --no-default-features --features noq --version "$2" "$1"
}

for program in cargo npm; do
    command -v "$program" >/dev/null || {
        echo "interop: $program is missing" >&2
        exit 1
    }
done
mkdir -p "$tools"
install_crate moq-relay 0.17.10 moq-relay
install_crate moq-cli 0.14.10 moq

page=$tools/page
mkdir -p "$page"
cp "$here/package.json" "$here/page.js" "$page/"
[ -d "$page/node_modules/@moq/net" ] || (cd "$page" && npm install --no-fund --no-audit --loglevel error)
(cd "$page" && node_modules/.bin/esbuild page.js --bundle --format=esm --log-level=warning --outfile=bundle.js)

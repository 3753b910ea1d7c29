#!/bin/sh
# Builds the Debian packages of programs that are already compiled: packaging/build.sh ARCHITECTURE PROGRAMS OUT [VERSION]
#
# ARCHITECTURE is Debian's name of it (amd64, arm64). PROGRAMS is the directory of `hawser` and of the programs that it starts,
# for it. OUT gets the packages. VERSION is that of Cargo.toml if it is not given. PAGES is a `hawser-pages` that runs on this
# machine, which writes the manual pages and the completions; without it, the one in PROGRAMS. LIBRARIES has, for another
# architecture than this machine's, a folder for each unpacked package with a library that the programs need.
set -eu

[ $# -ge 3 ] || { echo 'usage: packaging/build.sh ARCHITECTURE PROGRAMS OUT [VERSION]' >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$here")
architecture=$1
programs=$2
mkdir -p "$3"
out=$(cd "$3" && pwd)
version=${4:-$(sed -n 's/^version = "\(.*\)"$/\1/p' "$tree/Cargo.toml" | head -n 1)}
pages=${PAGES:-$programs/hawser-pages}
libraries=${LIBRARIES:+$(cd "$LIBRARIES" && pwd)}

stage=$out/stage-$architecture/hawser-$version
rm -rf "$out/stage-$architecture"
mkdir -p "$stage"
cp -r "$here/debian" "$stage/debian"
rm -r "$stage/debian/units"

put() {
    install -D -m "$1" "$2" "$stage/files/$3"
}
for program in hawser hawser-agent hawser-tunnel hawser-media hawser-controller hawser-ctl; do
    put 755 "$programs/$program" "usr/bin/$program"
done
for unit in "$here"/debian/units/*; do
    put 644 "$unit" "lib/systemd/system/${unit##*/}"
done
put 644 "$here/etc/controller.toml" etc/hawser/controller.toml
# The pages as they are in the tree, with all examples in one folder, and links to it where pages look for them.
documents=$stage/files/usr/share/doc/hawser
for document in README.md replication/README.md tunnel/README.md media/README.md control/README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT LICENSE-BSD-2-Clause LICENSE-GPL-2.0; do
    put 644 "$tree/$document" "usr/share/doc/hawser/$document"
done
cp -r "$tree/docs" "$documents/docs"
chmod -R u=rwX,go=rX "$documents/docs"
rm -r "$documents/docs/results"
for folder in replication/agent/examples media/recording/examples media/relay/examples tunnel/tunnel/examples docs/two-machines docs/under-a-controller; do
    for example in "$tree/$folder"/*.toml; do
        put 644 "$example" "usr/share/doc/hawser/examples/${example##*/}"
    done
    rm -rf "${documents:?}/$folder"
    mkdir -p "$documents/${folder%/*}"
    ln -s "$(echo "${folder%/*}" | sed 's|[^/]*|..|g')/examples" "$documents/$folder"
done

"$pages" "$stage/files"
for script in "$stage/files/bash"/*.bash; do
    program=$(basename "$script" .bash)
    put 644 "$script" "usr/share/bash-completion/completions/$program"
    put 644 "$stage/files/zsh/_$program" "usr/share/zsh/vendor-completions/_$program"
    put 644 "$stage/files/fish/$program.fish" "usr/share/fish/vendor_completions.d/$program.fish"
done
rm -r "$stage/files/bash" "$stage/files/zsh" "$stage/files/fish"
mkdir "$stage/files/man-ctl"
sed -i 's|docs/\([a-z\\-]*\.md\)|/usr/share/doc/hawser/docs/\1|g' "$stage/files/man"/*.1
mv "$stage/files/man"/hawser-ctl*.1 "$stage/files/man-ctl"

# The date of the last change, so that the same tree gives the same package.
date=$(git -C "$tree" log -1 --format=%cD 2>/dev/null || date -R)
cat >"$stage/debian/changelog" <<END
hawser ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- The Hawser authors <hawser@localhost>  $date
END

(cd "$stage" && LIBRARIES=$libraries DEB_BUILD_OPTIONS='nocheck noautodbgsym' dpkg-buildpackage --build=binary --host-arch "$architecture" --no-check-builddeps -us -uc >"$out/build-$architecture.log" 2>&1) || {
    tail -n 20 "$out/build-$architecture.log" >&2
    exit 1
}
# Debhelper renames and compresses what it takes for a changelog or for large.
dead=$(cd "$stage/debian/hawser/usr/share/doc/hawser" && find . -name '*.md' | while read -r page; do
    grep -o '\](\([^)#]\+\)' "$page" | sed 's/^](//; /^https:/d' | while read -r link; do
        [ -e "${page%/*}/$link" ] || echo "$page: $link"
    done
done)
[ -z "$dead" ] || {
    echo "links to what the package does not have:
$dead" >&2
    exit 1
}
# Also those of other versions, so that the names with a * in the guide and in the Containerfile mean one file.
rm -f "$out"/hawser*_"$architecture".deb
mv "$out/stage-$architecture"/hawser*_"${version}_$architecture".deb "$out"
rm -r "$out/stage-$architecture"
ls "$out"/hawser*_"${version}_$architecture".deb

#!/bin/sh
# Installs the missing packages for building and running Hawser. With `checks`, installs those for `make test`, and with
# `hostile`, `fuzz`, `bench`, `flamegraph`, `codecs`, `kernels`, `package`, `page`, `arm64` or `package-test` those for the target of `make` with this name.
# Prints what it installs, and does nothing if nothing is missing.
set -eu

# <command or file, possibly a pattern> <Debian's package that provides it> <Fedora's, or - if it has none>. `ip` is for the
# namespaces of the lab.
needed='
clang                        clang             clang
llvm-strip                   llvm              llvm
cc                           gcc               gcc
pkg-config                   pkg-config        pkgconf-pkg-config
/usr/include/libelf.h        libelf-dev        elfutils-libelf-devel
/usr/include/zlib.h          zlib1g-dev        zlib-devel
ip                           iproute2          iproute
ethtool                      ethtool           ethtool
nft                          nftables          nftables
ffmpeg                       ffmpeg            ffmpeg-free
dropbear                     dropbear-bin      dropbear
protoc                       protobuf-compiler protobuf-compiler
/usr/include/google/protobuf/descriptor.proto  libprotobuf-dev  protobuf-devel
'
# For `make test`. Tests start their own etcd on free ports.
needed_by_checks='
etcd                         etcd-server       etcd
curl                         curl              curl
qemu-aarch64                 qemu-user         qemu-user
'
# For `make page`, and to test it in a browser.
needed_by_page='
node                         nodejs            nodejs
npm                          npm               nodejs-npm
'
needed_by_browser='
chromium                     chromium          chromium
'
# For xtask/schemathesis.sh, which is also part of `make test` and installs the rest from PyPI.
needed_by_hostile='
curl                         curl              curl
openssl                      openssl           openssl
python3                      python3           python3
/usr/lib*/python3*/ensurepip  python3-venv     python3-libs
'
# For `make fuzz`: libFuzzer is C++, and is built with the targets.
needed_by_fuzz='
c++                          g++               gcc-c++
'
# For `make bench`, which compares the tunnel with WireGuard.
needed_by_bench='
wireguard-go                 wireguard-go      wireguard-go
wg                           wireguard-tools   wireguard-tools
'
# For `make flamegraph`.
needed_by_flamegraph='
perf                         linux-perf        perf
pgrep                        procps            procps-ng
'
# For `make codecs`, which compares Draco's programs. xtask/vmaf.sh installs the rest from PyPI.
needed_by_codecs='
draco_encoder                draco             draco
python3                      python3           python3
/usr/lib*/python3*/ensurepip  python3-venv     python3-libs
'
# For `make kernels`: the tools of xtask/kernel.sh, to boot the kernel that is unpacked below.
needed_by_kernels='
qemu-system-x86_64           qemu-system-x86   qemu-system-x86
busybox                      busybox-static    busybox
cpio                         cpio              cpio
depmod                       kmod              kmod
'
# For `make package`, which makes packages for Debian.
needed_by_package='
dh                           debhelper         debhelper
dpkg-buildpackage            dpkg-dev          dpkg-dev
'
# For `make package ARCH=arm64`, and to test the coding on ARM.
needed_by_arm64='
aarch64-linux-gnu-gcc        gcc-aarch64-linux-gnu  gcc-aarch64-linux-gnu
/usr/aarch64-linux-gnu/lib/crt1.o  libc6-dev-arm64-cross  -
'
# For `make package-test`: a Debian of its own, in QEMU.
needed_by_package_test='
debootstrap                  debootstrap       debootstrap
mke2fs                       e2fsprogs         e2fsprogs
'

die() {
    echo "setup: $*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null || die "not root and no sudo: as root, run: $*"
        sudo "$@"
    fi
}

is_installed() {
    case $1 in
    # shellcheck disable=SC2086 # a pattern
    /*) ls -d $1 >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] ;;
    esac
}

# Prints the column of the table in which the packages of this machine are: 2 for Debian's, 3 for Fedora's.
column() {
    if command -v apt-get >/dev/null; then
        echo 2
    elif command -v dnf >/dev/null; then
        echo 3
    fi
}

missing_packages() {
    echo "$1" | while read -r thing debian fedora; do
        [ -z "$thing" ] || is_installed "$thing" || echo "$debian $fedora"
    done | cut -d ' ' -f $(($2 - 1)) | sort -u | tr '\n' ' '
}

install_packages() {
    missing=$(missing_packages "$1" 2)
    [ -n "$missing" ] || return 0
    case $(column) in
    2) ;;
    3) die "missing. As root, run: dnf install $(missing_packages "$1" 3) (- stands for what Fedora has no package of)" ;;
    *) die "missing: $missing. These are names of Debian: install what they are called here" ;;
    esac
    echo "setup: installing from the distribution: $missing"
    as_root apt-get update -qq || echo 'setup: cannot update the list of packages' >&2
    case " $missing" in *' etcd-server '*) without_service etcd ;; esac
    # shellcheck disable=SC2086 # one word per package
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing ||
        die "cannot install. Missing: $missing. Install them when the distribution's servers can be reached: apt-get install $missing"
    case " $missing" in *' etcd-server '*) with_service_disabled etcd ;; esac
}

# Keeps a package that is installed next from starting its service on this machine, now and at the next boot. A failed
# installation leaves nothing behind.
without_service() {
    command -v systemctl >/dev/null || return 0
    as_root systemctl --quiet mask "$1"
    # shellcheck disable=SC2064 # the name is that of now
    trap "as_root systemctl --quiet unmask $1" EXIT
}
with_service_disabled() {
    command -v systemctl >/dev/null || return 0
    trap - EXIT
    as_root systemctl --quiet unmask "$1"
    as_root systemctl --quiet disable "$1"
}

# The version that the whole workspace needs.
require_rust() {
    install='install Rust 1.91 or later with rustup, then run this again'
    command -v cargo >/dev/null && command -v rustc >/dev/null || die "no Rust: $install"
    version=$(rustc --version | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$version" ] || die "cannot understand what rustc --version prints: $(rustc --version)"
    [ "$version" -ge 91 ] || die "Rust 1.$version is too old: $install"
}

install_check_tools() {
    if ! cargo deny --version >/dev/null 2>&1; then
        echo 'setup: installing cargo-deny (about two minutes)'
        cargo install cargo-deny --locked --quiet || echo 'setup: cannot install cargo-deny; the licence check will be skipped' >&2
    fi
    for target in wasm32-unknown-unknown aarch64-unknown-linux-gnu; do install_target $target; done
}

install_target() {
    if [ ! -d "$(rustc --print target-libdir --target "$1")" ]; then
        echo "setup: installing the Rust target $1"
        rustup target add "$1" || echo "setup: cannot install $1; what needs it will be skipped" >&2
    fi
}

# systemd mounts it at boot. Tests pin eBPF programs in it.
mount_bpf() {
    if ! grep -q ' /sys/fs/bpf bpf ' /proc/mounts; then
        echo 'setup: mounting the bpf file system'
        (as_root mount -t bpf bpf /sys/fs/bpf) || echo 'setup: cannot mount it; the eBPF tests will be skipped' >&2
    fi
}

# Kernels of Debian, into the build directory: they are not installed, and this machine does not boot them. The oldest one
# that the programs are made for, and that of the newest stable release, each in a directory named after the release.
kernels='bookworm trixie'
unpack_kernel() {
    mkdir -p "${CARGO_TARGET_DIR:-target}/kernel/$1/lists/partial"
    directory=$(cd "${CARGO_TARGET_DIR:-target}/kernel/$1" && pwd)
    # shellcheck disable=SC2016 # words of apt
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1)
    [ -n "$mirror" ] || die 'apt knows no server of Debian'
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$directory/sources.list"
    apt="-qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList=$directory/sources.list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$directory/lists"
    newest='s/^ *Depends: \(linux-image-[^ ]*\)$/\1/p'
    # shellcheck disable=SC2086 # one word per option
    if [ -z "$(ls "$directory"/linux/linux-image-* 2>/dev/null)" ]; then
        as_root apt-get $apt update || die "cannot read the list of packages of $1"
        package=$(apt-cache $apt depends linux-image-amd64 | sed -n "$newest")
        [ -n "$package" ] || die "no package linux-image-amd64 in $1"
        echo "setup: unpacking $package into $directory"
        rm -rf "$directory/linux" && mkdir -p "$directory/linux"
        (cd "$directory" && apt-get $apt download "$package" && dpkg -x "$package"_*.deb linux && rm "$package"_*.deb)
        [ -e "$directory/linux/lib" ] || ln -s usr/lib "$directory/linux/lib"
        find "$directory/linux/lib/" -name '*.ko.xz' -exec unxz {} +
        touch "$directory/linux/$package"
        rm -rf "$directory/lists"
    fi
}
unpack_kernels() {
    for release in $kernels; do unpack_kernel "$release"; done
}

# The libraries of ARM, into the build directory: in `root` to link programs with, in `packages` each with the versions
# of its symbols, from which the packages of the programs get their dependencies.
unpack_arm_libraries() {
    mkdir -p "${CARGO_TARGET_DIR:-target}/arm64/lists/partial"
    directory=$(cd "${CARGO_TARGET_DIR:-target}/arm64" && pwd)
    [ ! -d "$directory/packages" ] || return 0
    apt="-qq -o APT::Sandbox::User=root -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists=$directory/lists"
    echo "setup: unpacking libraries for ARM into $directory"
    # shellcheck disable=SC2086 # one word per option
    as_root apt-get $apt update || die 'cannot read the list of packages for arm64'
    rm -rf "$directory/new" "$directory"/*.deb
    mkdir "$directory/new"
    # shellcheck disable=SC2086 # one word per option
    (cd "$directory" && apt-get $apt download libc6 libgcc-s1 libelf-dev libelf1 zlib1g-dev zlib1g linux-libc-dev &&
        for package in *.deb; do
            dpkg -x "$package" root && dpkg-deb -R "$package" "new/${package%%_*}" || exit
        done) || die 'cannot unpack libraries for ARM'
    mv "$directory/new" "$directory/packages"
    rm -rf "$directory/lists" "$directory"/*.deb
}

# First, so that nothing is installed where it is of no use.
require_rust
case ${1-} in
'') install_packages "$needed" ;;
checks)
    install_packages "$needed_by_checks$needed_by_hostile$needed_by_arm64$needed_by_page$needed_by_browser"
    install_check_tools
    mount_bpf
    ;;
hostile) install_packages "$needed_by_hostile" ;;
fuzz) install_packages "$needed_by_fuzz" ;;
bench) install_packages "$needed_by_bench" ;;
flamegraph) install_packages "$needed_by_bench$needed_by_flamegraph" ;;
codecs) install_packages "$needed_by_codecs" ;;
page)
    install_packages "$needed_by_page"
    install_target wasm32-unknown-unknown
    ;;
package) install_packages "$needed_by_package" ;;
arm64)
    install_packages "$needed_by_arm64"
    install_target aarch64-unknown-linux-gnu
    unpack_arm_libraries
    ;;
kernels)
    install_packages "$needed_by_kernels"
    unpack_kernels
    ;;
package-test)
    install_packages "$needed_by_kernels$needed_by_package$needed_by_package_test"
    unpack_kernels
    ;;
*) die "unknown argument $1" ;;
esac

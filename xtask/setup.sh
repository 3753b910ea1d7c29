#!/bin/sh
# Installs the missing packages for building and running Hawser. With `checks`, `hostile`, `fuzz`, `bench`, `codecs` or
# `kernels`, also installs those for the target of `make` with this name, or `make test`. Prints what it installs, and does
# nothing if nothing is missing.
set -eu

# <command or file, possibly a pattern> <Debian package that provides it>. `ip` is for the namespaces of the lab.
needed='
clang                        clang
llvm-strip                   llvm
cc                           gcc
pkg-config                   pkg-config
/usr/include/libelf.h        libelf-dev
/usr/include/zlib.h          zlib1g-dev
ip                           iproute2
ethtool                      ethtool
nft                          nftables
ffmpeg                       ffmpeg
dropbear                     dropbear-bin
protoc                       protobuf-compiler
/usr/include/google/protobuf/descriptor.proto  libprotobuf-dev
'
# For `make test`. Tests start their own etcd on free ports; the package may also start its service.
needed_by_checks='
etcd                         etcd-server
curl                         curl
qemu-aarch64                 qemu-user
aarch64-linux-gnu-gcc        gcc-aarch64-linux-gnu
/usr/aarch64-linux-gnu/lib/crt1.o  libc6-dev-arm64-cross
'
# For xtask/schemathesis.sh, which is also part of `make test` and installs the rest from PyPI.
needed_by_hostile='
curl                         curl
openssl                      openssl
python3                      python3
/usr/lib/python3*/ensurepip  python3-venv
'
# For `make fuzz`: libFuzzer is C++, and is built with the targets.
needed_by_fuzz='
c++                          g++
'
# For `make bench`, which compares the tunnel with WireGuard.
needed_by_bench='
wireguard-go                 wireguard-go
wg                           wireguard-tools
'
# For `make codecs`, which compares Draco's programs. xtask/vmaf.sh installs the rest from PyPI.
needed_by_codecs='
draco_encoder                draco
python3                      python3
/usr/lib/python3*/ensurepip  python3-venv
'
# For `make kernels`: what xtask/kernel.sh needs to boot the kernel that is unpacked below.
needed_by_kernels='
qemu-system-x86_64           qemu-system-x86
busybox                      busybox-static
cpio                         cpio
depmod                       kmod
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

missing_packages() {
    echo "$1" | while read -r thing package; do
        [ -z "$thing" ] || is_installed "$thing" || printf ' %s' "$package"
    done
}

install_packages() {
    missing=$(missing_packages "$1")
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || die "missing:$missing. This script supports only apt-get: install them manually"
    echo "setup: installing from the distribution:$missing"
    as_root apt-get update -qq
    # shellcheck disable=SC2086 # one word per package
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

require_rust() {
    command -v cargo >/dev/null || die 'no cargo: install Rust 1.91 or later with rustup, then run this again'
}

install_check_tools() {
    if ! cargo deny --version >/dev/null 2>&1; then
        echo 'setup: installing cargo-deny (about two minutes)'
        cargo install cargo-deny --locked --quiet || echo 'setup: cannot install cargo-deny; the licence check will be skipped' >&2
    fi
    for target in wasm32-unknown-unknown aarch64-unknown-linux-gnu; do
        if [ ! -d "$(rustc --print target-libdir --target $target)" ]; then
            echo "setup: installing the Rust target $target"
            rustup target add $target || echo "setup: cannot install $target; its checks will be skipped" >&2
        fi
    done
}

# systemd mounts it at boot. Tests pin eBPF programs in it.
mount_bpf() {
    if ! grep -q ' /sys/fs/bpf bpf ' /proc/mounts; then
        echo 'setup: mounting the bpf file system'
        (as_root mount -t bpf bpf /sys/fs/bpf) || echo 'setup: cannot mount it; the eBPF tests will be skipped' >&2
    fi
}

# Debian's kernel, into the build directory: it is not installed, and this machine does not boot it.
unpack_kernel() {
    directory=${CARGO_TARGET_DIR:-target}/kernel
    newest='s/^ *Depends: \(linux-image-[^ ]*\)$/\1/p'
    package=$(apt-cache depends linux-image-amd64 | sed -n "$newest")
    [ -n "$package" ] || die 'no package linux-image-amd64: as root, run apt-get update'
    [ ! -e "$directory/linux/$package" ] || return 0
    echo "setup: unpacking $package into $directory"
    rm -rf "$directory" && mkdir -p "$directory/linux"
    (cd "$directory" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg -x "$package"_*.deb linux && rm "$package"_*.deb)
    touch "$directory/linux/$package"
}

case ${1-} in
'')
    install_packages "$needed"
    require_rust
    ;;
checks)
    install_packages "$needed_by_checks$needed_by_hostile"
    require_rust
    install_check_tools
    mount_bpf
    ;;
hostile) install_packages "$needed_by_hostile" ;;
fuzz) install_packages "$needed_by_fuzz" ;;
bench) install_packages "$needed_by_bench" ;;
codecs) install_packages "$needed_by_codecs" ;;
kernels)
    install_packages "$needed_by_kernels"
    unpack_kernel
    ;;
*) die "unknown argument $1" ;;
esac

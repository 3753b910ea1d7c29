#!/bin/sh
# Makes a Debian for machine.sh: packaging/machine/image.sh KERNEL OUT
#
# KERNEL is the directory in which `xtask/setup.sh kernels` has unpacked a kernel. OUT gets `root.ext4`, `initramfs` and
# `vmlinuz`. The Debian is the release and comes from the servers that this machine uses. It has systemd and the libraries
# and tools that Hawser's packages depend on. Needs root.
set -eu

kernel=$1
out=$2
packages=systemd-sysv,udev,kmod,iproute2,ethtool,nftables,procps,libelf1,zlib1g,libgcc-s1,ca-certificates,openssh-server,openssh-client
# The machine's disk, network and the kernel's own network stack.
modules='net lib crypto arch/x86/crypto fs/ext4 fs/jbd2 fs/mbcache.ko drivers/virtio drivers/block/virtio_blk.ko '
modules=$modules'drivers/net/virtio_net.ko drivers/net/net_failover.ko drivers/net/tun.ko drivers/net/veth.ko drivers/net/macvlan.ko drivers/net/dummy.ko drivers/net/wireguard '
modules=$modules'fs/autofs drivers/char/hw_random'

mkdir -p "$out"
root=$out/root
image=$(echo "$kernel"/linux/boot/vmlinuz-*)
version=${image##*/vmlinuz-}
# shellcheck disable=SC1091 # of this machine
. /etc/os-release
# The package that this was made from says whether it is current.
made="$version $packages"
[ "$(cat "$out/made" 2>/dev/null)" != "$made" ] || exit 0

mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | sed -n "s/ $VERSION_CODENAME\$//p" | head -n 1)
rm -rf "$root"
echo "image: Debian $VERSION_CODENAME with Linux $version, in $out"
debootstrap --variant=minbase --include="$packages" "$VERSION_CODENAME" "$root" "$mirror" >"$out/debootstrap.log" 2>&1 || {
    tail -n 5 "$out/debootstrap.log" >&2
    exit 1
}
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*

# shellcheck disable=SC2086 # one word per pattern
"$(dirname "$0")/../../xtask/modules.sh" "$kernel" "$version" "$root" $modules

# The second disk is an archive with the program `run`, whose output is that of the machine's first serial port.
cat >"$root/etc/systemd/system/run.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
StandardOutput=null
ExecStart=/bin/sh -c 'mkdir /run/work && cd /run/work && tar -xf /dev/vdb && ./run >/dev/ttyS0 2>&1; echo "== exit code $?" >/dev/ttyS0; systemctl poweroff --force --force'
END
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../run.service "$root/etc/systemd/system/default.target.wants/run.service"
# The administrator of one machine can log in at the other, by SSH only.
mkdir -p -m 700 "$root/root/.ssh"
chroot "$root" ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
cp "$root/root/.ssh/id_ed25519.pub" "$root/root/.ssh/authorized_keys"
echo 'StrictHostKeyChecking accept-new' >"$root/root/.ssh/config"
ln -sf /dev/null "$root/etc/systemd/system/getty@.service"
ln -sf /dev/null "$root/etc/systemd/system/serial-getty@.service"
echo machine >"$root/etc/hostname"
rm -f "$out/root.ext4"
mke2fs -q -t ext4 -d "$root" "$out/root.ext4" 1500M

# From here on, the disk that the machine starts from.
start=$out/start
rm -rf "$start"
mkdir -p "$start/bin"
cp "$(command -v busybox)" "$start/bin/busybox"
for module in virtio_blk ext4 virtio_pci; do
    modprobe -d "$root" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p'
done | awk '!seen[$1]++ { print $1 }' | while read -r module; do
    cp "$module" "$start/"
    echo "${module##*/}" >>"$start/modules"
done
cat >"$start/init" <<'END'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod /"$module"; done </modules
/bin/busybox mount /dev/vda /root
exec /bin/busybox switch_root /root /sbin/init
END
chmod +x "$start/init"
(cd "$start" && find . | cpio -o -H newc --quiet) >"$out/initramfs"
cp "$image" "$out/vmlinuz"
rm -rf "$start" "$root"
echo "$made" >"$out/made"

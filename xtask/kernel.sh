#!/bin/sh
# Boots Debian's kernel, which `setup.sh kernels` has unpacked, in QEMU under software emulation, and runs commands in it as
# root, one after the other: xtask/kernel.sh DIRECTORY COMMAND...
#
# DIRECTORY is where the kernel was unpacked. The first word of each COMMAND is the path of an executable here. The
# machine has the modules of the kernel's network stack and of virtual devices, which are loaded when they are needed,
# what iproute2, ethtool and nftables have, busybox, and no network. Prints what the commands print. The exit code is 0 if
# each exited with 0.
set -eu

# The time that all commands may take, and the memory of the machine.
seconds=7200
memory=1G

programs='ip tc ethtool nft'
modules='net lib crypto arch/x86/crypto drivers/net/*.ko'

die() {
    echo "kernel.sh: $*" >&2
    exit 1
}

# Copies an executable and the libraries that it is linked with. Debugging information stays here.
copy_executable() {
    mkdir -p "$root/$(dirname "$2")"
    strip --strip-debug -o "$root/$2" "$1"
    ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        [ -e "$root$library" ] || install -D "$library" "$root$library"
    done
}

[ $# -ge 2 ] || die 'usage: xtask/kernel.sh DIRECTORY COMMAND...'
directory=$1
shift
root=$directory/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/commands"

image=$(echo "$directory"/linux/boot/vmlinuz-*)
[ -e "$image" ] || die "no kernel in $directory: run xtask/setup.sh kernels"
# shellcheck disable=SC2086 # one word per pattern
"$(dirname "$0")/modules.sh" "$directory" "${image##*/vmlinuz-}" "$root" $modules
cp "$(command -v busybox)" "$root/bin/busybox"
for program in $programs; do
    found=$(PATH=$PATH:/usr/sbin:/sbin command -v "$program") || die "no $program"
    copy_executable "$found" "usr/sbin/$program"
done
for command; do
    executable=${command%% *}
    copy_executable "$executable" "commands/${executable##*/}"
    echo "/commands/${executable##*/}${command#"$executable"}" >>"$root/commands/list"
done

cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run/netns /var /sbin /root
/bin/busybox --install -s /bin
ln -s /run /var/run
ln -s /bin/modprobe /sbin/modprobe
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
export PATH=/usr/sbin:/bin HOME=/root
ip link set lo up
uname -srm
while read -r command; do
    echo "== $command"
    $command </dev/null
    echo "== exit code $?"
done </commands/list
poweroff -f
END
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$directory/initramfs"

# A panic ends the machine. Everything goes to the first serial port.
# One instruction takes 4 ns of the machine's time, which passes at once while it idles: how busy this host is makes no
# difference to the results. It works with one processor.
timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=single -icount shift=2,align=off,sleep=off -smp 1 -m "$memory" -display none -vga none -monitor none \
    -serial stdio -no-reboot -net none \
    -kernel "$image" -initrd "$directory/initramfs" -append 'console=ttyS0 edd=off panic=-1 loglevel=1' </dev/null |
    sed -u 's/\r$//' | tee "$directory/output"
succeeded=$(grep -cx '== exit code 0' "$directory/output" || true)
[ "$succeeded" = $# ] || die "$succeeded of $# commands succeeded"

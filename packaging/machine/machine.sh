#!/bin/sh
# Runs a directory's program `run` as root in a machine of its own, under software emulation: packaging/machine/machine.sh
# IMAGE DIRECTORY OUTPUT [NIC]...
#
# IMAGE is from image.sh, and does not change. DIRECTORY is copied to the machine. OUTPUT gets the machine's output. Each
# NIC is a backend of QEMU for a network interface, eth0 and so on: `socket,listen=127.0.0.1:7001`. The exit code is 0 if
# that of `run` is 0. After 15 minutes the machine ends.
set -eu

image=$1
directory=$2
output=$3
shift 3
seconds=900

archive=$output.tar
tar -C "$directory" -cf "$archive" .
number=0
for nic; do
    shift
    set -- "$@" -netdev "$nic,id=nic$number" -device "virtio-net-pci,netdev=nic$number,mac=52:54:00:$(printf %s "$nic$output" | md5sum | sed 's/^\(..\)\(..\)\(..\).*/\1:\2:\3/')"
    number=$((number + 1))
done
timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 1500M -display none -vga none -monitor none -serial stdio -no-reboot \
    -nic none "$@" -cpu max \
    -drive "file=$image/root.ext4,format=raw,if=virtio,snapshot=on" -drive "file=$archive,format=raw,if=virtio,readonly=on" \
    -kernel "$image/vmlinuz" -initrd "$image/initramfs" -append 'console=ttyS0 root=/dev/vda rw net.ifnames=0 quiet panic=-1 systemd.show_status=false' </dev/null |
    tr -d '\r' >"$output"
rm -f "$archive"
grep -qx '== exit code 0' "$output"

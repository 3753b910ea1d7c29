//! Checks which tests this machine can run.

use std::path::Path;
use std::process::{Command, Stdio};

/// The way to run tests that need root.
pub(crate) enum Root {
    /// This process runs as root.
    Own,
    /// sudo works without a password.
    Sudo,
}

/// Returns the way to become root, or the reason that there is none.
pub(crate) fn root() -> Result<Root, String> {
    if succeeds("sh", &["-c", "test $(id -u) = 0"]) {
        Ok(Root::Own)
    } else if succeeds("sudo", &["-n", "true"]) {
        Ok(Root::Sudo)
    } else {
        Err("needs root, or sudo without a password".into())
    }
}

/// Returns the reason that eBPF programs cannot be loaded here, if there is one.
pub(crate) fn without_ebpf(root: &Root) -> Option<String> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        Some("the kernel has no type information (CONFIG_DEBUG_INFO_BTF)".into())
    } else if !as_root(
        root,
        "test -w /sys/fs/bpf && grep -q ' /sys/fs/bpf bpf ' /proc/mounts",
    ) {
        Some("no bpf file system: mount -t bpf bpf /sys/fs/bpf".into())
    } else {
        None
    }
}

/// Returns the reason that network namespaces cannot be created here, if there is one.
pub(crate) fn without_namespaces(root: &Root) -> Option<String> {
    if !as_root(
        root,
        "unshare --net ip link add hawser0 type veth peer name hawser1",
    ) {
        Some(
            "no network namespaces or no veth devices (unshare --net ip link add ... type veth)"
                .into(),
        )
    } else {
        None
    }
}

/// Returns the reason that folders cannot be hidden from a program here, if there is one.
pub(crate) fn without_mounts(root: &Root) -> Option<String> {
    (!as_root(root, "unshare --mount mount -t tmpfs none /mnt"))
        .then(|| "no mount namespaces (unshare --mount mount -t tmpfs none /mnt)".into())
}

/// Returns whether `program` runs and exits successfully. Its output is discarded.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn as_root(root: &Root, script: &str) -> bool {
    match root {
        Root::Own => succeeds("sh", &["-c", script]),
        Root::Sudo => succeeds("sudo", &["-n", "sh", "-c", script]),
    }
}

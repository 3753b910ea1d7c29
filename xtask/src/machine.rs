//! What the machine allows the tests to do.

use std::path::Path;
use std::process::{Command, Stdio};

/// How tests that need root get it.
pub(crate) enum Root {
    /// We are root.
    Own,
    /// Through sudo without a password.
    Sudo,
}

/// How to become root, or why not.
pub(crate) fn root() -> Result<Root, String> {
    if succeeds("sh", &["-c", "test $(id -u) = 0"]) {
        Ok(Root::Own)
    } else if succeeds("sudo", &["-n", "true"]) {
        Ok(Root::Sudo)
    } else {
        Err("needs root, or sudo without a password".into())
    }
}

/// Why eBPF programs cannot be loaded here, if so.
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

/// Why network namespaces cannot be made here, if so.
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

/// Whether `program` runs and reports success, with its output out of sight.
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

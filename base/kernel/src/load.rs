//! Why programs are not loaded.

use crate::table::TableError;
use std::fs;
use std::path::PathBuf;

/// The reason that programs were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The process lacks a privilege.
    #[error(
        "loading eBPF programs needs root, or the capabilities CAP_BPF, CAP_NET_ADMIN and, to replicate, CAP_PERFMON"
    )]
    NotPermitted,
    /// The kernel's verifier rejected a program.
    #[error(
        "the kernel's verifier rejected the eBPF program {program}; the kernel may be too old (-v logs the reason)"
    )]
    NotVerified {
        /// Name of the object file.
        program: &'static str,
    },
    /// The kernel rejected a program or a table.
    #[error("the kernel rejected the eBPF program {program}: {source}")]
    Rejected {
        /// Name of the object file.
        program: &'static str,
        /// The error from libbpf.
        source: libbpf_rs::Error,
    },
    /// A table that an earlier process has pinned could not be taken over.
    #[error("cannot take over the pinned table {path}: {source}", path = path.display())]
    Pinned {
        /// The pin.
        path: PathBuf,
        /// The error from libbpf.
        source: libbpf_rs::Error,
    },
    /// A table could not be set up.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl LoadError {
    /// Returns what makes an error from libbpf that of a program.
    pub fn of(program: &'static str) -> impl Fn(libbpf_rs::Error) -> LoadError {
        move |source| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if has_capabilities() => {
                LoadError::NotVerified { program }
            }
            libbpf_rs::ErrorKind::PermissionDenied => LoadError::NotPermitted,
            _ => LoadError::Rejected { program, source },
        }
    }
}

const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;
const CAP_BPF: u64 = 1 << 39;

/// Returns whether this process has the capabilities that all programs need together. The kernel
/// does not say whether it lacks one of them or the verifier rejected a program.
fn has_capabilities() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .unwrap_or_default();
    let has = |wanted: u64| effective & wanted == wanted;
    has(CAP_NET_ADMIN) && (has(CAP_SYS_ADMIN) || has(CAP_BPF | CAP_PERFMON))
}

use libbpf_rs::libbpf_sys;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How an XDP program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// In the driver; an error where the driver cannot.
    #[default]
    Native,
    /// Behind the allocation of socket buffers: works everywhere and is several times slower.
    Generic,
}

/// Why a program is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The driver has no XDP.
    #[error(
        "interface {ifindex} has no native XDP ({source}); allow generic XDP in the configuration or use another interface"
    )]
    NoNativeXdp {
        /// The interface.
        ifindex: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another program is there.
    #[error("interface {ifindex} already has an XDP program; detach it first (`bpftool net` shows it)")]
    Occupied {
        /// The interface.
        ifindex: u32,
    },
    /// The kernel is older than 6.6.
    #[error("this kernel has no TCX (Linux 6.6 or later is needed to replicate locally generated traffic)")]
    NoTcx,
    /// Anything else.
    #[error("cannot attach to interface {ifindex}: {source}")]
    Other {
        /// The interface.
        ifindex: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A program's attachment to an interface. Dropping the last holder detaches it; a pinned one outlives its process.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Attaches an XDP program.
    pub fn xdp(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> Result<Self, AttachError> {
        let flags = match mode {
            XdpMode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        };
        create(program, ifindex, libbpf_sys::BPF_XDP, flags).map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => AttachError::Occupied { ifindex },
            Some(libc::EOPNOTSUPP) if mode == XdpMode::Native => AttachError::NoNativeXdp { ifindex, source },
            _ => AttachError::Other { ifindex, source },
        })
    }

    /// Attaches a TC program behind those that are already at the interface's egress.
    pub fn tcx_egress(program: BorrowedFd<'_>, ifindex: u32) -> Result<Self, AttachError> {
        Self::tcx(program, ifindex, libbpf_sys::BPF_TCX_EGRESS)
    }

    /// Attaches a TC program behind those that are already at the interface's ingress.
    pub fn tcx_ingress(program: BorrowedFd<'_>, ifindex: u32) -> Result<Self, AttachError> {
        Self::tcx(program, ifindex, libbpf_sys::BPF_TCX_INGRESS)
    }

    fn tcx(program: BorrowedFd<'_>, ifindex: u32, side: u32) -> Result<Self, AttachError> {
        create(program, ifindex, side, 0).map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) => AttachError::NoTcx,
            _ => AttachError::Other { ifindex, source },
        })
    }

    /// Replaces the program without a packet passing in between.
    pub fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both descriptors are open; a null pointer stands for no options.
        let code =
            unsafe { libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
        check(code).map(drop)
    }

    /// Gives the attachment a name in a bpf file system.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the descriptor is open and the path ends in a zero byte.
        check(unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), path.as_ptr()) }).map(drop)
    }

    /// The attachment that an earlier process pinned.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the path ends in a zero byte.
        let fd = check(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn create(program: BorrowedFd<'_>, ifindex: u32, attach_type: u32, flags: u32) -> io::Result<Link> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags,
        ..Default::default()
    };
    let target = i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the program is open and the options live across the call.
    let code =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, attach_type, &raw const options) };
    let fd = check(code)?;
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn check(code: i32) -> io::Result<i32> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(code) }
}

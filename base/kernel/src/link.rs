//! Attachments of programs to interfaces.

use libbpf_rs::libbpf_sys;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The attachment mode of an XDP program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// In the driver; an error if the driver does not support it.
    #[default]
    Native,
    /// After the allocation of socket buffers: works everywhere, but is several times slower.
    Generic,
}

/// The reason that a program was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The driver does not support XDP, or not with its present settings.
    #[error(
        "interface {ifindex} has no native XDP: {} ({source}); remove `generic_xdp = false` from the configuration or use another interface",
        refusal(source)
    )]
    NoNativeXdp {
        /// The interface.
        ifindex: u32,
        /// The error from the kernel.
        source: io::Error,
    },
    /// The kernel does not run generic XDP on the interface.
    #[error(
        "interface {ifindex} has no generic XDP: {} ({source})",
        refusal(source)
    )]
    NoGenericXdp {
        /// The interface.
        ifindex: u32,
        /// The error from the kernel.
        source: io::Error,
    },
    /// Another program is attached.
    #[error(
        "interface {ifindex} already has an XDP program; detach it first: if a bpf file system was mounted over the pins of an earlier agent, unmount it and start again; otherwise, `bpftool net` names the program, and `bpftool link show` its link, which `bpftool link detach id NUMBER` ends"
    )]
    Occupied {
        /// The interface.
        ifindex: u32,
    },
    /// An attachment or a table cannot be pinned.
    #[error("cannot pin {} in the bpf file system: {source}", path.display())]
    Pin {
        /// The path of the pin.
        path: PathBuf,
        /// The error from the kernel.
        source: io::Error,
    },
    /// The kernel is older than 6.6.
    #[error(
        "this kernel has no TCX (Linux 6.6 or later is needed to replicate locally generated traffic or without native XDP, for paths without Ethernet, and to relay media)"
    )]
    NoTcx,
    /// Any other failure.
    #[error("cannot attach to interface {ifindex}: {source}")]
    Other {
        /// The interface.
        ifindex: u32,
        /// The error from the kernel.
        source: io::Error,
    },
}

impl AttachError {
    /// Returns the interface that the error concerns, if any.
    pub fn interface(&self) -> Option<u32> {
        match self {
            Self::NoNativeXdp { ifindex, .. }
            | Self::NoGenericXdp { ifindex, .. }
            | Self::Occupied { ifindex }
            | Self::Other { ifindex, .. } => Some(*ifindex),
            Self::Pin { .. } | Self::NoTcx => None,
        }
    }

    /// Returns the reason that the kernel or the driver refuses the program at this hook, about the
    /// interface as "it". Another hook may work. `None` for any other failure.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::NoNativeXdp { source, .. } => Some(format!(
                "native XDP is refused: {} ({source})",
                refusal(source)
            )),
            Self::NoGenericXdp { source, .. } => Some(format!(
                "generic XDP is refused: {} ({source})",
                refusal(source)
            )),
            Self::NoTcx => Some("this kernel has no TCX (Linux 6.6)".to_owned()),
            Self::Occupied { .. } | Self::Pin { .. } | Self::Other { .. } => None,
        }
    }
}

/// Describes the errors with which drivers refuse an XDP program.
fn refusal(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "its driver does not support it, or not with its offloads",
        Some(libc::ERANGE | libc::E2BIG | libc::EMSGSIZE) => {
            "its MTU, or that of its other end, is too large"
        }
        Some(libc::ENOSPC | libc::ENOMEM) => "it has not enough queues or memory",
        Some(libc::EINVAL) => "its driver rejects its MTU, queues or offloads",
        _ => "the kernel rejects it",
    }
}

/// Returns whether an XDP program was refused because of the interface and the mode, so that another
/// mode may work.
fn is_refusal(source: &io::Error) -> bool {
    let of_another_kind = [libc::ENODEV, libc::EPERM, libc::EACCES, libc::EBADF];
    let code = source.raw_os_error();
    code.is_some_and(|code| !of_another_kind.contains(&code))
}

/// The attachment of a program to an interface. Dropping the last reference detaches it; a pinned
/// one outlives its process.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Attaches an XDP program.
    pub fn xdp(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> Result<Self, AttachError> {
        let flags = match mode {
            XdpMode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        };
        create(program, ifindex, libbpf_sys::BPF_XDP, flags).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => AttachError::Occupied { ifindex },
                _ if !is_refusal(&source) => AttachError::Other { ifindex, source },
                _ if mode == XdpMode::Native => AttachError::NoNativeXdp { ifindex, source },
                _ => AttachError::NoGenericXdp { ifindex, source },
            }
        })
    }

    /// Attaches a TC program after those already at the interface's egress.
    pub fn tcx_egress(program: BorrowedFd<'_>, ifindex: u32) -> Result<Self, AttachError> {
        Self::tcx(program, ifindex, libbpf_sys::BPF_TCX_EGRESS)
    }

    /// Attaches a TC program after those already at the interface's ingress.
    pub fn tcx_ingress(program: BorrowedFd<'_>, ifindex: u32) -> Result<Self, AttachError> {
        Self::tcx(program, ifindex, libbpf_sys::BPF_TCX_INGRESS)
    }

    fn tcx(program: BorrowedFd<'_>, ifindex: u32, side: u32) -> Result<Self, AttachError> {
        create(program, ifindex, side, 0).map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) => AttachError::NoTcx,
            _ => AttachError::Other { ifindex, source },
        })
    }

    /// Replaces the program without missing a packet.
    pub fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both descriptors are open; a null pointer stands for no options.
        let code = unsafe {
            libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        };
        check(code).map(drop)
    }

    /// Detaches the program at once, even if there are other references.
    pub fn detach(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        check(unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) }).map(drop)
    }

    /// Ends the attachment, whatever other references there are. Dropping the link is not enough when the
    /// same program is attached again at once: a child process has a copy of the descriptor until it
    /// calls `exec`.
    pub fn end(self) {
        // This fails only if the interface is gone, and with it the attachment.
        let _ = self.detach();
    }

    /// Ends the attachments to an interface.
    pub fn end_all(links: &mut Vec<(u32, Link)>, ifindex: u32) {
        links
            .extract_if(.., |(attached, _)| *attached == ifindex)
            .for_each(|(_, link)| link.end());
    }

    /// Returns the interface that an XDP or TC program is attached to; `None` if it is gone or the
    /// program was detached.
    pub fn interface(&self) -> io::Result<Option<u32>> {
        let info = self.info()?;
        // SAFETY: every variant of the union is plain integers, and the kernel has filled in that
        // of the link's type.
        let ifindex = unsafe {
            match info.type_ {
                libbpf_sys::BPF_LINK_TYPE_XDP => info.__bindgen_anon_1.xdp.ifindex,
                libbpf_sys::BPF_LINK_TYPE_TCX => info.__bindgen_anon_1.tcx.ifindex,
                _ => 0,
            }
        };
        Ok((ifindex != 0).then_some(ifindex))
    }

    /// Returns whether the program is still attached.
    pub fn is_attached(&self) -> bool {
        self.interface().is_ok_and(|interface| interface.is_some())
    }

    /// Returns whether the attachment is at TC.
    pub fn is_at_tc(&self) -> io::Result<bool> {
        Ok(self.info()?.type_ == libbpf_sys::BPF_LINK_TYPE_TCX)
    }

    /// Returns the attached program.
    pub fn program(&self) -> io::Result<OwnedFd> {
        let id = self.info()?.prog_id;
        // SAFETY: the call takes a number.
        let fd = check(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })?;
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn info(&self) -> io::Result<libbpf_sys::bpf_link_info> {
        let mut info = MaybeUninit::<libbpf_sys::bpf_link_info>::zeroed();
        let mut bytes = size_of::<libbpf_sys::bpf_link_info>() as u32;
        // SAFETY: the descriptor is open, and both pointers are to locals of the given size.
        let code = unsafe {
            libbpf_sys::bpf_link_get_info_by_fd(
                self.0.as_raw_fd(),
                info.as_mut_ptr(),
                &raw mut bytes,
            )
        };
        check(code)?;
        // SAFETY: zeroes are a valid value, and the kernel has overwritten them.
        Ok(unsafe { info.assume_init() })
    }

    /// Opens the attachment with this number in the kernel, of any process.
    pub fn by_number(number: u32) -> io::Result<Self> {
        // SAFETY: the call takes a number.
        let fd = check(unsafe { libbpf_sys::bpf_link_get_fd_by_id(number) })?;
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Opens an attachment that an earlier process pinned.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the path ends in a zero byte.
        let fd = check(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

/// Pins a kernel object under a path in a bpf file system.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the descriptor is open and the path ends in a zero byte.
    check(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// Returns the mode in which the XDP program of an interface is attached; `None` if it has no
/// program.
pub fn xdp_mode(ifindex: u32) -> io::Result<Option<XdpMode>> {
    let mut found = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let target = i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the pointer is to a local whose size is in its `sz` field.
    check(unsafe { libbpf_sys::bpf_xdp_query(target, 0, &raw mut found) })?;
    Ok(match u32::from(found.attach_mode) {
        libbpf_sys::XDP_ATTACHED_NONE => None,
        libbpf_sys::XDP_ATTACHED_SKB => Some(XdpMode::Generic),
        _ => Some(XdpMode::Native),
    })
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
    let code = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), target, attach_type, &raw const options)
    };
    let fd = check(code)?;
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn check(code: i32) -> io::Result<i32> {
    if code < 0 {
        Err(io::Error::from_raw_os_error(-code))
    } else {
        Ok(code)
    }
}

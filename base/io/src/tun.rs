//! Opens TUN and TAP devices.

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The reason that a device could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The kernel was built without TUN, or this is a container that does not have it.
    #[error("cannot open /dev/net/tun: this needs a kernel with TUN, and root or CAP_NET_ADMIN")]
    Open(#[source] io::Error),
    /// Interface names have at most 15 bytes.
    #[error("{0:?} cannot be the name of an interface: it has 1 to 15 bytes")]
    Name(String),
    /// The process lacks `CAP_NET_ADMIN`.
    #[error("cannot create the device {name}: this needs root or CAP_NET_ADMIN")]
    NotPermitted {
        /// The device's name.
        name: String,
        /// The error from the kernel.
        source: io::Error,
    },
    /// A device of that name exists, or it is not a TUN device.
    #[error("cannot create the device {name}: does another device have that name?")]
    Create {
        /// The device's name.
        name: String,
        /// The error from the kernel.
        source: io::Error,
    },
    /// The kernel supports none of the offloads.
    #[error("the kernel does not support checksum offload on {name}")]
    Offload {
        /// The device's name.
        name: String,
        /// The error from the kernel.
        source: io::Error,
    },
}

/// Creates a device, down and without addresses, which exists as long as the descriptor. `flags` are those of `TUNSETIFF`:
/// `libc::IFF_TUN` or `IFF_TAP`, and others. With `IFF_VNET_HDR` packets have a `virtio_net_hdr` in front and all offloads
/// are on. Returns whether GSO of UDP is among them (Linux 6.2). Reading does not block.
///
/// # Errors
/// If `name` is not the name of an interface or another device has it, if the kernel has no TUN, or without a privilege.
pub fn open(name: &str, flags: libc::c_int) -> Result<(OwnedFd, bool), TunError> {
    let path: &CStr = c"/dev/net/tun";
    let access = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = nix::fcntl::open(path, access, Mode::empty())
        .map_err(|errno| TunError::Open(errno.into()))?;
    attach(&file, name, flags)?;
    if flags & libc::IFF_VNET_HDR == 0 {
        return Ok((file, false));
    }
    let udp_gso = set_offloads(&file).map_err(|source| TunError::Offload {
        name: name.to_owned(),
        source,
    })?;
    Ok((file, udp_gso))
}

fn attach(file: &OwnedFd, name: &str, flags: libc::c_int) -> Result<(), TunError> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ || bytes.contains(&0) {
        return Err(TunError::Name(name.to_owned()));
    }
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, from) in ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let ifru_flags = (flags | libc::IFF_NO_PI) as libc::c_short;
    let request = libc::ifreq {
        ifr_name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags },
    };
    // SAFETY: the descriptor is open, and the request lives until the call returns.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
    if result == 0 {
        return Ok(());
    }
    let (name, source) = (name.to_owned(), io::Error::last_os_error());
    Err(match source.kind() {
        io::ErrorKind::PermissionDenied => TunError::NotPermitted { name, source },
        _ => TunError::Create { name, source },
    })
}

/// Enables the offloads that this process can handle. Returns whether GSO of UDP is among them.
fn set_offloads(file: &OwnedFd) -> io::Result<bool> {
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let set = |offloads: libc::c_uint| {
        // SAFETY: the descriptor is open, and the argument is a number.
        let result = unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(offloads),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    if set(tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok() {
        return Ok(true);
    }
    set(tcp).map(|()| false)
}

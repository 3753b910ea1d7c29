//! An Ethernet device without a link, which exists only as long as the process that created it.

use crate::interface;
use crate::tun::{self, TunError};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The minimum number of the device's descriptor, if the limit allows it. See [`Tap::create`].
const MIN_DESCRIPTOR: u64 = 1000;

/// A TAP device whose frames are never read: packets that leave by it are handled by the programs
/// at its egress.
///
/// The kernel removes the device and its routes when this value is dropped and when the process
/// exits for any reason.
#[derive(Debug)]
pub struct Tap {
    _file: OwnedFd,
    name: String,
    index: u32,
}

impl Tap {
    /// Creates a device called `name`, down and without addresses.
    ///
    /// The kernel closes the descriptors of a killed process from the highest to the lowest. The
    /// device gets a high one, so that it and its routes are removed before the programs that were
    /// attached to it.
    ///
    /// # Errors
    /// [`TunError::Create`] if a device of that name exists.
    pub fn create(name: &str) -> Result<Tap, TunError> {
        let (file, _) = tun::open(
            name,
            libc::IFF_TAP | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL,
        )?;
        let failed = |source: io::Error| TunError::Create {
            name: name.to_owned(),
            source,
        };
        let file = raise(file).map_err(failed)?;
        let index = interface::index(name).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        Ok(Tap {
            _file: file,
            name: name.to_owned(),
            index,
        })
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns whether the device still exists: another process may have deleted it.
    pub fn exists(&self) -> bool {
        interface::index(&self.name) == Some(self.index)
    }
}

/// Duplicates the descriptor to a higher number.
fn raise(file: OwnedFd) -> io::Result<OwnedFd> {
    let (allowed, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let lowest = MIN_DESCRIPTOR.min(allowed.saturating_sub(1));
    let lowest = i32::try_from(lowest).expect("descriptors fit an i32");
    let raised = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(lowest))?;
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raised) })
}

//! An Ethernet device that leads nowhere and is there only as long as the process that made it.

use crate::interface;
use crate::tun::{self, TunError};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The least number of the device's descriptor, where so many are allowed. See [`Tap::create`].
const HIGH: u64 = 1000;

/// A TAP device whose frames nobody reads: what leaves by it is the business of the programs at its egress.
///
/// The kernel removes the device and the routes by it when this value is dropped and when the process ends, however it
/// ends.
#[derive(Debug)]
pub struct Tap {
    _file: OwnedFd,
    name: String,
    index: u32,
}

impl Tap {
    /// Makes a device called `name`, down and without addresses.
    ///
    /// The kernel releases the descriptors of a killed process from the highest to the lowest. The device gets a high
    /// one, so that it goes, and its routes with it, before the programs that were attached to it.
    ///
    /// # Errors
    /// [`TunError::Create`] when there is a device of that name.
    pub fn create(name: &str) -> Result<Tap, TunError> {
        let (file, _) = tun::open(name, libc::IFF_TAP | libc::IFF_TUN_EXCL)?;
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

    /// Whether the device is still there: anyone may have deleted it.
    pub fn exists(&self) -> bool {
        interface::index(&self.name) == Some(self.index)
    }
}

/// The same file by a higher descriptor.
fn raise(file: OwnedFd) -> io::Result<OwnedFd> {
    let (allowed, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let lowest = HIGH.min(allowed.saturating_sub(1));
    let lowest = i32::try_from(lowest).expect("descriptors fit an i32");
    let raised = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(lowest))?;
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raised) })
}

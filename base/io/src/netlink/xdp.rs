use super::generic::{ask, attribute, family};
use std::io;

/// The abilities of an interface's driver with XDP (`linux/netdev.h`). Every interface that is not
/// listed here can run programs in the slower generic mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Whether it runs programs.
    pub native: bool,
    /// Whether a program can redirect a frame to another interface.
    pub redirect: bool,
    /// Whether it sends frames that a program elsewhere redirects to it. Some drivers do so only
    /// while a program is attached.
    pub is_target: bool,
}

/// Returns what the kernel says about the interface with this number. Needs no privilege.
///
/// # Errors
/// `Unsupported` if the kernel does not tell (before Linux 6.3). If there is no such interface.
pub fn xdp_features(index: u32) -> io::Result<XdpFeatures> {
    let family = family(b"netdev\0").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::Unsupported,
            "Linux tells it since version 6.3",
        ),
        _ => error,
    })?;
    let index = index.to_ne_bytes();
    let device = ask(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index)?;
    let bits = u64::from_ne_bytes(attribute(&device, NETDEV_A_DEV_XDP_FEATURES)?);
    Ok(XdpFeatures {
        native: bits & NETDEV_XDP_ACT_BASIC != 0,
        redirect: bits & NETDEV_XDP_ACT_REDIRECT != 0,
        is_target: bits & NETDEV_XDP_ACT_NDO_XMIT != 0,
    })
}

// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_REDIRECT: u64 = 1 << 1;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 1 << 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        assert!(xdp_features(u32::MAX >> 1).is_err());
    }
}

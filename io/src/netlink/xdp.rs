use netlink_packet_core::NlasIterator;
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use std::io;

/// What the driver of an interface can do with XDP (`linux/netdev.h`). Every interface that is not
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
    let family = attribute(
        &ask(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0").map_err(
            |error| match error.kind() {
                io::ErrorKind::NotFound => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kernel does not tell what drivers can do with XDP: that needs Linux 6.3 or later",
                ),
                _ => error,
            },
        )?,
        CTRL_ATTR_FAMILY_ID,
    )?;
    let family = u16::from_ne_bytes(family);
    let index = index.to_ne_bytes();
    let device = ask(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index)?;
    let bits = u64::from_ne_bytes(attribute(&device, NETDEV_A_DEV_XDP_FEATURES)?);
    Ok(XdpFeatures {
        native: bits & NETDEV_XDP_ACT_BASIC != 0,
        redirect: bits & NETDEV_XDP_ACT_REDIRECT != 0,
        is_target: bits & NETDEV_XDP_ACT_NDO_XMIT != 0,
    })
}

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_REDIRECT: u64 = 1 << 1;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 1 << 2;

// linux/netlink.h
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;

/// The length of a message's header, and of that of generic netlink which follows it.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// Sends a request with one attribute, and returns the attributes of the answer.
fn ask(family: u16, command: u8, kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let socket = Socket::new(NETLINK_GENERIC)?;
    let message = request(family, command, kind, value);
    socket.send_to(&message, &SocketAddr::new(0, 0), 0)?;
    attributes(&socket.recv_from_full()?.0)
}

fn request(family: u16, command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute = 4 + value.len();
    let length = HEADER + GENERIC_HEADER + attribute.next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // The sequence number and the sender, which the kernel fills in.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend((attribute as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(length, 0);
    message
}

/// Returns the attributes of an answer, or the error that it is.
fn attributes(answer: &[u8]) -> io::Result<Vec<u8>> {
    let kind = answer.get(4..6).ok_or_else(malformed)?;
    if kind == NLMSG_ERROR.to_ne_bytes() {
        let code = answer.get(HEADER..HEADER + 4).ok_or_else(malformed)?;
        let code = i32::from_ne_bytes(code.try_into().map_err(|_| malformed())?);
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    let attributes = answer.get(HEADER + GENERIC_HEADER..);
    attributes.map(<[u8]>::to_vec).ok_or_else(malformed)
}

fn attribute<const N: usize>(attributes: &[u8], kind: u16) -> io::Result<[u8; N]> {
    let mut found = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .filter(|attribute| attribute.kind() == kind);
    let value = found
        .next()
        .and_then(|attribute| attribute.value().try_into().ok());
    value.ok_or_else(malformed)
}

fn malformed() -> io::Error {
    io::Error::other("unexpected answer of the kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_attributes_or_is_an_error() {
        let answer = request(30, 1, NETDEV_A_DEV_XDP_FEATURES, &7u64.to_ne_bytes());
        let found = attributes(&answer).unwrap();
        let bits = attribute(&found, NETDEV_A_DEV_XDP_FEATURES).map(u64::from_ne_bytes);
        assert_eq!(bits.unwrap(), 7);
        assert!(attribute::<4>(&found, NETDEV_A_DEV_XDP_FEATURES).is_err());
        assert!(attribute::<8>(&found, NETDEV_A_DEV_IFINDEX).is_err());

        let mut error = vec![0; 36];
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        error[16..20].copy_from_slice(&(-19i32).to_ne_bytes());
        assert_eq!(attributes(&error).unwrap_err().raw_os_error(), Some(19));
        for length in 0..20 {
            assert!(attributes(&error[..length]).is_err());
        }
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        assert!(xdp_features(u32::MAX >> 1).is_err());
    }
}

//! Requests of generic netlink, which need no privilege here.

use super::find;
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use std::io;

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Returns the number of the family with this name, of which the last byte is 0.
///
/// # Errors
/// `NotFound` if the kernel has no such family.
pub(super) fn family(name: &[u8]) -> io::Result<u16> {
    let answer = ask(
        GENL_ID_CTRL,
        CTRL_CMD_GETFAMILY,
        CTRL_ATTR_FAMILY_NAME,
        name,
    )?;
    attribute(&answer, CTRL_ATTR_FAMILY_ID).map(u16::from_ne_bytes)
}

// linux/netlink.h
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;

/// The length of a message's header, and of that of generic netlink which follows it.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// Sends a request with one attribute, and returns the attributes of the answer.
pub(super) fn ask(family: u16, command: u8, kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
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

pub(super) fn attribute<const N: usize>(attributes: &[u8], kind: u16) -> io::Result<[u8; N]> {
    let value = find(attributes, kind).and_then(|value| value.try_into().ok());
    value.ok_or_else(malformed)
}

pub(super) fn malformed() -> io::Error {
    io::Error::other("unexpected answer of the kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_attributes_or_is_an_error() {
        let answer = request(30, 1, 3, &7u64.to_ne_bytes());
        let found = attributes(&answer).unwrap();
        assert_eq!(attribute(&found, 3).map(u64::from_ne_bytes).unwrap(), 7);
        assert!(attribute::<4>(&found, 3).is_err());
        assert!(attribute::<8>(&found, 1).is_err());

        let mut error = vec![0; 36];
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        error[16..20].copy_from_slice(&(-19i32).to_ne_bytes());
        assert_eq!(attributes(&error).unwrap_err().raw_os_error(), Some(19));
        for length in 0..20 {
            assert!(attributes(&error[..length]).is_err());
        }
    }

    #[test]
    fn a_family_that_does_not_exist_is_not_found() {
        let error = family(b"no-such-family\0").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

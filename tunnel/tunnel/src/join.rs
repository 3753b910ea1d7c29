//! The messages on the first stream of each connection, which open a session or join another uplink
//! to it.
//!
//! The secret of a session comes from the TLS exporter of the connection that opened it. The proof
//! of a joining connection is derived from that secret and from the exporter of the joining
//! connection. So the secret itself is never sent, a proof is valid for one connection only, and
//! the ends of a joined connection are the same as those of the session.

use crate::config::{Coding, INNER_MTU};
use anyhow::{Context, Result, ensure};
use noq::{Connection, ConnectionError, RecvStream, SendStream};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};
use std::net::IpAddr;

/// The reason for closing a connection, as a QUIC application error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CloseCode {
    /// The session has ended.
    Done = 0,
    /// The session is refused; the reason was sent on the stream.
    Refused = 1,
    /// Another connection of the same uplink has replaced it.
    Replaced = 2,
    /// The server is shutting down.
    Draining = 3,
    /// The uplink is no longer used.
    Left = 4,
    /// Another client with the same name has opened a session.
    Superseded = 5,
    /// The ends have different versions of the protocol; the reason is the server's.
    Version = 6,
}

impl CloseCode {
    pub(crate) fn close(self, connection: &Connection) {
        connection.close((self as u32).into(), format!("{self:?}").as_bytes());
    }

    /// Returns whether the peer closed the connection with this code.
    pub(crate) fn is_reason_of(self, reason: &ConnectionError) -> bool {
        matches!(reason, ConnectionError::ApplicationClosed(close) if close.error_code == (self as u32).into())
    }
}

/// The largest message, in bytes.
const MAX_MESSAGE_BYTES: u16 = 4096;

/// The public identifier of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SessionId([u8; 16]);

impl SessionId {
    pub(crate) fn random() -> SessionId {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the kernel provides random bytes");
        SessionId(bytes)
    }
}

impl TryFrom<String> for SessionId {
    type Error = hex::FromHexError;

    fn try_from(text: String) -> Result<Self, hex::FromHexError> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(SessionId(bytes))
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> String {
        hex::encode(id.0)
    }
}

/// The first messages of a client on each connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Hello {
    /// Asks whether full packets arrive in both directions. Another message follows.
    Probe,
    /// Opens a session; the connection is its first path.
    Open {
        /// The inner addresses that the client had at another server or before.
        addresses: Vec<IpAddr>,
        path: PathNumber,
    },
    /// Adds the connection to a session as another path.
    Join {
        session: SessionId,
        path: PathNumber,
        proof: String,
    },
}

/// The index of a path, and its initial role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathNumber {
    pub(crate) index: hawser_units::PathId,
    /// The path is on standby: it is used only while the others do not suffice.
    pub(crate) standby: bool,
}

/// The answer of the server to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// To [`Hello::Probe`], in a full packet.
    Arrived,
    Opened(Box<Opened>),
    Joined,
    Refused {
        reason: Refusal,
        explanation: String,
    },
}

/// The parameters of an opened session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(crate) session: SessionId,
    /// The client's inner addresses, with their prefix lengths.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// The server's inner addresses.
    pub(crate) server_addresses: Vec<IpAddr>,
    /// The largest inner packet if the uplinks have room for it, in bytes.
    #[serde(deserialize_with = "inner_mtu")]
    pub(crate) mtu: u16,
    pub(crate) coding: Coding,
}

/// Reads an MTU that a server can have. With a smaller one, IPv6 would leave outside the tunnel.
fn inner_mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let mtu = u16::deserialize(deserializer)?;
    if !INNER_MTU.contains(&mtu) {
        let [least, most] = [INNER_MTU.start(), INNER_MTU.end()];
        return Err(D::Error::custom(format!(
            "an MTU of {mtu} bytes; {least} to {most} are valid"
        )));
    }
    Ok(mtu)
}

/// The reason for refusing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Refusal {
    /// The server is shutting down or full; another server may accept the client.
    Busy,
    /// The sessions of other clients use all the memory; another server may accept the client.
    Memory,
    /// The client opens sessions faster than the server allows.
    TooOften,
    /// The session has ended or never existed.
    UnknownSession,
    /// The proof is not valid for this connection and session.
    Proof,
    /// The client is not admitted.
    NotAdmitted,
    /// The message cannot be parsed.
    Malformed,
}

/// The later messages on the same stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Notice {
    /// From the client: whether this path is on standby.
    Standby(bool),
    /// From the server: it shuts down soon.
    Draining,
    /// From the server, on paths that have been on standby: whether packets to the client wait for
    /// a path.
    Backlog(bool),
    /// From the server: UDP payloads of more bytes than this do not arrive at the client any more.
    Narrow(u16),
}

/// The secret of a session, which both ends derive from the connection that opened it.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    pub(crate) fn of(connection: &Connection, session: SessionId) -> Result<Secret> {
        export_key(connection, b"EXPORTER-hawser-tunnel-session", &session.0).map(Secret)
    }

    /// Returns the proof that the client end of `connection` is the one that opened the session.
    pub(crate) fn proof(&self, connection: &Connection, path: PathNumber) -> Result<String> {
        let own = export_key(
            connection,
            b"EXPORTER-hawser-tunnel-join",
            &[u8::from(path.index)],
        )?;
        // Both parts have a fixed length and the secret comes first, so a plain digest is as good
        // as an HMAC here.
        Ok(hex::encode(
            Sha256::new()
                .chain_update(self.0)
                .chain_update(own)
                .finalize(),
        ))
    }

    /// Returns whether `proof` is valid, in a time that does not depend on where a wrong proof
    /// differs.
    pub(crate) fn accepts(&self, connection: &Connection, path: PathNumber, proof: &str) -> bool {
        let Ok(expected) = self.proof(connection, path) else {
            return false;
        };
        let differences = expected
            .bytes()
            .zip(proof.bytes())
            .fold(0, |all, (one, other)| all | (one ^ other));
        expected.len() == proof.len() && differences == 0
    }
}

fn export_key(connection: &Connection, label: &[u8], context: &[u8]) -> Result<[u8; 32]> {
    let mut output = [0; 32];
    let exported = connection.export_keying_material(&mut output, label, context);
    ensure!(exported.is_ok(), "cannot export keying material from TLS");
    Ok(output)
}

/// Sends a message: its length in 16 bits, big-endian, then JSON.
pub(crate) async fn send<T: Serialize>(stream: &mut SendStream, message: &T) -> Result<()> {
    send_padded(stream, message, 0).await
}

/// Sends a message padded with spaces to `udp_payload` bytes, so that it arrives only where packets
/// of that size do.
pub(crate) async fn send_padded<T: Serialize>(
    stream: &mut SendStream,
    message: &T,
    udp_payload: u16,
) -> Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.resize(
        text.len().max(udp_payload.min(MAX_MESSAGE_BYTES).into()),
        b' ',
    );
    let length = u16::try_from(text.len())
        .ok()
        .filter(|length| *length <= MAX_MESSAGE_BYTES);
    let length = length.context("the message is too long")?;
    stream
        .write_all(&[&length.to_be_bytes()[..], &text].concat())
        .await?;
    Ok(())
}

/// Receives a message.
pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut RecvStream) -> Result<T> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).await?;
    let mut text = vec![0; message_bytes(length)?];
    stream.read_exact(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

/// Returns the length of a message, from the bytes in front of it.
pub(crate) fn message_bytes(length: [u8; 2]) -> Result<usize> {
    let length = u16::from_be_bytes(length);
    ensure!(
        length <= MAX_MESSAGE_BYTES,
        "the peer announced a message of {length} bytes; the limit is {MAX_MESSAGE_BYTES}"
    );
    Ok(length.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::{ANSWERS, HELLOS, NOTICES, check_message, check_messages};
    use crate::mutation::{changed, changes};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    proptest! {
        #[test]
        fn any_length_is_rejected_or_within_the_limit(length: [u8; 2]) {
            let announced = u16::from_be_bytes(length);
            match message_bytes(length) {
                Ok(bytes) => prop_assert_eq!(bytes, usize::from(announced)),
                Err(_) => prop_assert!(announced > MAX_MESSAGE_BYTES),
            }
        }

        #[test]
        fn any_bytes_are_rejected_or_a_message(
            text in vec(any::<u8>(), 0..usize::from(MAX_MESSAGE_BYTES)),
        ) {
            check_messages(&text);
        }

        #[test]
        fn a_changed_message_is_rejected_or_a_message(
            valid in select([&HELLOS[..], &ANSWERS[..], &NOTICES[..]].concat()),
            changes in changes(),
        ) {
            check_messages(&changed(valid.as_bytes(), &changes));
        }

        #[test]
        fn a_path_of_any_index_is_rejected_or_one_of_eight(index: i64, small in -1..10i64) {
            for index in [index, small] {
                let text = format!(r#"{{"index":{index},"standby":false}}"#);
                prop_assert_eq!(check_message::<PathNumber>(text.as_bytes()), (0..8).contains(&index));
            }
        }

        #[test]
        fn a_session_of_any_text_is_rejected_or_16_bytes(
            id in vec(select(b"0123456789abcdefABCDEFg".to_vec()), 30..35),
        ) {
            let id = String::from_utf8(id).expect("ASCII");
            let is_valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            prop_assert_eq!(check_message::<SessionId>(format!("\"{id}\"").as_bytes()), is_valid);
        }
    }

    #[test]
    fn a_server_cannot_make_the_tunnel_too_small_for_ipv6() {
        for (mtu, is_valid) in [
            (0, false),
            (68, false),
            (1279, false),
            (1280, true),
            (1500, true),
            (1501, false),
        ] {
            let opened = ANSWERS.iter().find(|text| text.contains("mtu")).unwrap();
            let opened = opened.replace("\"mtu\":1400", &format!("\"mtu\":{mtu}"));
            assert_eq!(
                check_message::<Answer>(opened.as_bytes()),
                is_valid,
                "{mtu}"
            );
        }
    }

    #[test]
    fn unchanged_messages_are_accepted_with_any_padding() {
        let padded = |text: &str| format!("{text}{}", " ".repeat(1000));
        for text in HELLOS {
            assert!(check_message::<Hello>(text.as_bytes()), "{text}");
            assert!(check_message::<Hello>(padded(text).as_bytes()), "{text}");
        }
        for text in ANSWERS {
            assert!(check_message::<Answer>(text.as_bytes()), "{text}");
        }
        for text in NOTICES {
            assert!(check_message::<Notice>(text.as_bytes()), "{text}");
        }
    }
}

//! What the ends say on the stream that each connection begins with: a session is opened, or joined by another uplink.
//!
//! The secret of a session comes from the TLS exporter of the connection that opened it, and the proof of one that joins
//! is made of that secret and of its own exporter. So nothing that is worth stealing is ever sent, a proof is good for
//! one connection only, and the two ends of a joined connection are those of the session.

use crate::config::Coding;
use anyhow::{Context, Result, ensure};
use noq::{Connection, ConnectionError, RecvStream, SendStream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::net::IpAddr;

/// The protocol's name in TLS, with its version.
pub(crate) const PROTOCOL: &[u8] = b"hawser-tunnel/1";

/// Why a connection is closed, as QUIC's application error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CloseCode {
    /// The end of the session.
    Done = 0,
    /// The session is refused; why was said on the stream.
    Refused = 1,
    /// Another connection of the same uplink took its place.
    Replaced = 2,
    /// The server ends.
    Draining = 3,
    /// The uplink is not used any more.
    Left = 4,
    /// Another client of the same name has opened a session.
    Superseded = 5,
}

impl CloseCode {
    pub(crate) fn close(self, connection: &Connection) {
        connection.close((self as u32).into(), format!("{self:?}").as_bytes());
    }

    /// Whether the other end closed the connection with this code.
    pub(crate) fn is_of(self, reason: &ConnectionError) -> bool {
        matches!(reason, ConnectionError::ApplicationClosed(close) if close.error_code == (self as u32).into())
    }
}

/// Bytes of a message at most.
const MOST_BYTES: u16 = 4096;

/// A session's public name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SessionId([u8; 16]);

impl SessionId {
    pub(crate) fn random() -> SessionId {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("every Linux has random bytes");
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

/// What a client says first on each connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Hello {
    /// A new session; the connection is its first path.
    Open {
        /// The inner addresses that it had at another server or before.
        addresses: Vec<IpAddr>,
        path: PathNumber,
    },
    /// One more path of a session.
    Join {
        session: SessionId,
        path: PathNumber,
        proof: String,
    },
}

/// A path's index, with what it is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathNumber {
    pub(crate) index: hawser_units::PathId,
    /// It waits until the others do not suffice.
    pub(crate) standby: bool,
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Opened(Box<Opened>),
    Joined,
    Refused {
        reason: Refusal,
        explanation: String,
    },
}

/// A session that was opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(crate) session: SessionId,
    /// The client's inner addresses, with the lengths of the prefixes that they are of.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// The server's.
    pub(crate) server_addresses: Vec<IpAddr>,
    /// The largest packet, if the uplinks have room for it.
    pub(crate) mtu: u16,
    pub(crate) coding: Coding,
}

/// Why there is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Refusal {
    /// The server ends, or is full: another one may do.
    Busy,
    /// The sessions of other clients have all the memory: another server may do.
    Memory,
    /// This client opens sessions faster than the server allows.
    TooOften,
    /// The session is over, or never was.
    UnknownSession,
    /// The proof is not one of this connection and that session.
    Proof,
    /// This client is not let in.
    NotAdmitted,
    /// What was said makes no sense.
    Malformed,
}

/// What the ends say later on the same stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Notice {
    /// By the client: whether this path waits.
    Standby(bool),
    /// By the server: it ends soon.
    Draining,
    /// By the server, on paths that have waited: whether packets to the client wait for a path.
    Wanted(bool),
}

/// The secret of a session, the same at both ends of the connection that opened it.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    pub(crate) fn of(connection: &Connection, session: SessionId) -> Result<Secret> {
        exported(connection, b"EXPORTER-hawser-tunnel-session", &session.0).map(Secret)
    }

    /// What shows that the other end of `connection` is the one that opened the session.
    pub(crate) fn proof(&self, connection: &Connection, path: PathNumber) -> Result<String> {
        let own = exported(
            connection,
            b"EXPORTER-hawser-tunnel-join",
            &[u8::from(path.index)],
        )?;
        // Two parts of fixed length, the secret first: a plain digest is as good as an HMAC here.
        Ok(hex::encode(
            Sha256::new()
                .chain_update(self.0)
                .chain_update(own)
                .finalize(),
        ))
    }

    /// Whether `proof` is the right one. It takes as long for a wrong one, wherever that differs.
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

fn exported(connection: &Connection, label: &[u8], context: &[u8]) -> Result<[u8; 32]> {
    let mut output = [0; 32];
    let exported = connection.export_keying_material(&mut output, label, context);
    ensure!(exported.is_ok(), "TLS exports no keys");
    Ok(output)
}

/// Sends a message: its length in 16 bits, then JSON.
pub(crate) async fn send<T: Serialize>(stream: &mut SendStream, message: &T) -> Result<()> {
    send_filling(stream, message, 0).await
}

/// Sends a message with so much space at its end that it fills a packet of `udp_payload` bytes: it arrives where such
/// packets do.
pub(crate) async fn send_filling<T: Serialize>(
    stream: &mut SendStream,
    message: &T,
    udp_payload: u16,
) -> Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.resize(text.len().max(udp_payload.min(MOST_BYTES).into()), b' ');
    let length = u16::try_from(text.len())
        .ok()
        .filter(|length| *length <= MOST_BYTES);
    let length = length.context("a message that is too long")?;
    stream
        .write_all(&[&length.to_be_bytes()[..], &text].concat())
        .await?;
    Ok(())
}

/// Waits for a message.
pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut RecvStream) -> Result<T> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).await?;
    let length = u16::from_be_bytes(length);
    ensure!(
        length <= MOST_BYTES,
        "a message of {length} bytes: more than {MOST_BYTES} are not taken"
    );
    let mut text = vec![0; length.into()];
    stream.read_exact(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

//! The records in the store: JSON under keys of the form `kind/name`.

pub(crate) mod key;

use crate::store::{Revision, Write};
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::access::{IssuedToken, Token};
use hawser_model::audit::Actor;
use hawser_model::discovery::{DiscoveredPath, Ends};
use hawser_model::pair::NodeKeys;
use hawser_model::resource::{Event, Flow, PathHealth};
use hawser_model::track::{Serving, Track, TrackRole};
use hawser_model::tunnel::ClientReport;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// The maximum number of certificates of a node that are accepted at the same time: the one in use,
/// and others that were issued but may not have reached the node.
const MAX_CERTIFICATES: usize = 3;

/// The maximum number of enrolment tokens of a node, of which some have expired or were used.
const MAX_TOKENS: usize = 32;

/// A node, except what it reports about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) tenant: Name,
    /// A description, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) description: String,
    /// The key of in-band signals to the node, 32 hexadecimal digits. It is created with the first
    /// certificate, and `None` before.
    pub(crate) signal_key: Option<String>,
    /// The accepted certificates. Renewing adds one, revoking removes all.
    pub(crate) certificates: Vec<Issued>,
    /// The one-time enrolment tokens. They are part of the node, so that none outlives it and none
    /// is valid for a later node of the same name.
    pub(crate) enrolments: Vec<EnrolmentRecord>,
    /// The revision of the last requested change, if a later one has only removed expired tokens.
    pub(crate) changed_in: Option<Revision>,
    /// Identifies the node among those that have had its name, and its time before and after it was
    /// revoked. Made with the first certificate, and `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incarnation: Option<String>,
}

impl NodeRecord {
    /// Creates a node that is not enrolled yet.
    pub(crate) fn of(tenant: Name) -> NodeRecord {
        NodeRecord {
            tenant,
            description: String::new(),
            signal_key: None,
            certificates: vec![],
            enrolments: vec![],
            changed_in: None,
            incarnation: None,
        }
    }

    /// Returns the node without certificates and enrolment tokens.
    pub(crate) fn revoked(self) -> NodeRecord {
        let description = self.description;
        NodeRecord {
            description,
            ..NodeRecord::of(self.tenant)
        }
    }

    /// Returns whether the nodes are equal except for their description and their enrolment tokens.
    pub(crate) fn is_same_to_itself(&self, other: &NodeRecord) -> bool {
        let NodeRecord {
            tenant,
            description: _,
            signal_key,
            certificates,
            incarnation,
            enrolments: _,
            changed_in: _,
        } = self;
        (tenant, signal_key, certificates, incarnation)
            == (
                &other.tenant,
                &other.signal_key,
                &other.certificates,
                &other.incarnation,
            )
    }

    /// Returns the accepted certificate with that serial number.
    pub(crate) fn certificate(&self, serial: &str) -> Option<&Issued> {
        self.certificates
            .iter()
            .find(|issued| issued.serial == serial)
    }

    /// Returns the revision of the last requested change. `written` is the revision that wrote the
    /// record.
    pub(crate) fn changed_in(&self, written: Revision) -> Revision {
        self.changed_in.unwrap_or(written)
    }

    /// Adds an enrolment token, for which the one that expired first has to go if there are too many.
    /// Tokens are not removed for having expired alone: the clock may be wrong.
    pub(crate) fn add_token(&mut self, token: EnrolmentRecord) {
        if self.enrolments.len() >= MAX_TOKENS {
            let expiry = |place: &usize| self.enrolments[*place].expires_unix_ms;
            let first = (0..self.enrolments.len()).min_by_key(expiry);
            first.map(|first| self.enrolments.remove(first));
        }
        self.enrolments.push(token);
    }

    /// Returns the number of tokens that can be used.
    pub(crate) fn usable_tokens(&self) -> usize {
        let now = unix_ms();
        let usable = |token: &&EnrolmentRecord| token.used.is_none() && now < token.expires_unix_ms;
        self.enrolments.iter().filter(usable).count()
    }

    /// Marks an enrolment token as used for a certificate, which becomes the only one of the node.
    /// Only the latest use is kept: its certificate has replaced those of earlier ones.
    pub(crate) fn use_token(&mut self, id: &str, used: UsedRecord, issued: Issued) {
        self.enrolments
            .retain(|enrolment| enrolment.used.is_none() || enrolment.id == id);
        if let Some(enrolment) = self.enrolments.iter_mut().find(|known| known.id == id) {
            enrolment.used = Some(used);
        }
        self.signal_key = Some(random_hex::<16>());
        self.incarnation.get_or_insert_with(random_hex::<16>);
        self.certificates = vec![issued];
    }

    /// Accepts one more certificate. If there are too many, expired ones are dropped first. The one with the
    /// serial number `in_use` stays even if later ones are dropped: the node may not have received those.
    pub(crate) fn renew(&mut self, issued: Issued, in_use: &str) {
        while self.certificates.len() >= MAX_CERTIFICATES {
            let surplus = |only_expired: bool| {
                let goes = |known: &Issued| {
                    let has_expired = known.expires_unix_ms <= unix_ms();
                    known.serial != in_use && (has_expired || !only_expired)
                };
                self.certificates.iter().position(goes)
            };
            let Some(place) = surplus(true).or_else(|| surplus(false)) else {
                break;
            };
            self.certificates.remove(place);
        }
        self.certificates.push(issued);
    }
}

/// An issued certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Issued {
    /// The serial number, hexadecimal.
    pub(crate) serial: String,
    pub(crate) expires_unix_ms: u64,
    /// The time for which leaders had run when it was issued, seconds, if that was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_time_s: Option<u64>,
}

/// A one-time enrolment token, stored in the record of its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnrolmentRecord {
    /// The identifier, hexadecimal.
    pub(crate) id: String,
    pub(crate) secret_sha256: String,
    pub(crate) created_unix_ms: u64,
    pub(crate) expires_unix_ms: u64,
    pub(crate) used: Option<UsedRecord>,
}

/// The response to the use of a token. The same key may request it again, because the first
/// response may have been lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsedRecord {
    pub(crate) at_unix_ms: u64,
    /// The SHA-256 digest of the public key (SubjectPublicKeyInfo), hexadecimal.
    pub(crate) key_sha256: String,
    pub(crate) serial: String,
    /// The certificate, PEM.
    pub(crate) certificate: String,
    pub(crate) renew_unix_ms: u64,
}

/// A flow and its number at both of its nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FlowRecord {
    pub(crate) flow: Flow,
    pub(crate) number: u16,
    /// Whether the egress has reported that it deduplicates the flow's copies. It is only
    /// maintained for flows that wait for it.
    #[serde(default)]
    pub(crate) received: bool,
    /// The revision of the last change by an operator, if a later one has only written `received`.
    pub(crate) changed_in: Option<Revision>,
}

impl FlowRecord {
    /// Returns the revision of the last change by an operator. `written` is the revision that wrote
    /// the record.
    pub(crate) fn changed_in(&self, written: Revision) -> Revision {
        self.changed_in.unwrap_or(written)
    }
}

/// A track and its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrackRecord {
    pub(crate) track: Track,
    /// The number of the secret.
    pub(crate) number: u32,
    /// The secret, 64 hexadecimal digits.
    pub(crate) secret: String,
}

impl TrackRecord {
    /// Creates a track with its first secret.
    pub(crate) fn of(track: Track) -> TrackRecord {
        TrackRecord {
            track,
            number: 1,
            secret: random_hex::<32>(),
        }
    }

    /// Returns what a node with this role gets of the secret, 64 hexadecimal digits; `None` if the
    /// secret is not valid.
    pub(crate) fn secret_for(&self, role: TrackRole) -> Option<String> {
        if role.includes(TrackRole::Reader) {
            return Some(self.secret.clone());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(&self.secret, &mut bytes).ok()?;
        Some(hex::encode(*hawser_wire::secret::access(&bytes)))
    }

    /// Replaces the secret.
    pub(crate) fn rekey(&mut self) {
        self.number = self.number.saturating_add(1);
        self.secret = random_hex::<32>();
    }
}

/// A flow number at a node and the flow that it belongs to. The record stays when the flow is
/// deleted, so that no epoch is used twice under one number: a delayed in-band signal of the
/// deleted flow is then too old for the next flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NumberRecord {
    pub(crate) flow: Option<Name>,
    /// The last epoch under this number, if there is no flow.
    pub(crate) epoch: u32,
}

/// An operator's token, under its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) token: Token,
    pub(crate) secret_sha256: String,
    /// The secret before the last one, if it was to stay valid for some time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<PreviousSecret>,
}

impl TokenRecord {
    /// Returns the write of a new token.
    pub(crate) fn put(issued: &IssuedToken) -> Write {
        let record = TokenRecord {
            token: issued.token.clone(),
            secret_sha256: sha256_hex(&issued.secret),
            previous: None,
        };
        Write::put(key::of(key::TOKEN, &issued.token.name), emit(&record))
    }
}

impl TokenRecord {
    /// Returns whether the secret with this digest is a valid one of the token. The token may have
    /// expired.
    pub(crate) fn has_secret(&self, sha256: &str) -> bool {
        let previous = self.previous.as_ref();
        self.secret_sha256 == sha256
            || previous.is_some_and(|previous| {
                previous.secret_sha256 == sha256 && unix_ms() < previous.until_unix_ms
            })
    }

    pub(crate) fn is_expired(&self) -> bool {
        let expires = self.token.expires_unix_ms;
        expires.is_some_and(|expires| expires <= unix_ms())
    }

    /// Returns the digests of all secrets, valid or not.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &String> {
        let previous = self.previous.iter();
        previous
            .map(|previous| &previous.secret_sha256)
            .chain([&self.secret_sha256])
    }
}

/// A secret of a token that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreviousSecret {
    pub(crate) secret_sha256: String,
    pub(crate) until_unix_ms: u64,
}

/// The time of a token's last use, updated rarely. It is not a part of [`TokenRecord`], whose
/// revision is the token's ETag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenUseRecord {
    pub(crate) at_unix_ms: u64,
}

/// Marks a node as alive. Written under its controller's lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AliveRecord {
    /// The controller that the node reports to.
    pub(crate) controller: String,
    pub(crate) since_unix_ms: u64,
}

/// The time of a node's last report, updated rarely. It is not under the controller's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenRecord {
    pub(crate) at_unix_ms: u64,
    /// Whether the node had a lease then and its loss has not been reported.
    pub(crate) is_alive: bool,
}

/// A node's public keys, and what it says of the keys that it shares with others. It is not under the
/// node's lease: the keys of a node that is away stay valid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeysRecord {
    pub(crate) stated: NodeKeys,
    /// The smallest generation that the newest key may have: that of the newest key known, or the one
    /// that an operator has demanded.
    pub(crate) least_generation: u64,
}

impl KeysRecord {
    /// Returns the record with a new statement of the node.
    pub(crate) fn restated(self, stated: NodeKeys) -> KeysRecord {
        KeysRecord {
            least_generation: self.least_generation.max(self.newest()),
            stated,
        }
    }

    /// Demands a newer key than the newest one.
    pub(crate) fn demand_newer(&mut self) {
        let newer = self.newest().saturating_add(1);
        self.least_generation = self.least_generation.max(newer);
    }

    fn newest(&self) -> u64 {
        self.stated.keys.last().map_or(0, |key| key.generation)
    }
}

/// The health of a node's paths. Written under its controller's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HealthRecord {
    pub(crate) paths: Vec<PathHealth>,
    /// The candidates for paths on which the other node answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) reached: Vec<Ends>,
}

/// The paths between two nodes that were made of their uplinks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathsRecord {
    pub(crate) paths: Vec<DiscoveredPath>,
}

/// A tunnel server's report. Written under its controller's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelRecord {
    pub(crate) addresses: Vec<SocketAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tcp_port: Option<u16>,
    pub(crate) clients: u32,
    pub(crate) max_clients: u32,
    pub(crate) draining: bool,
}

/// Where a node serves a track. Written under the lease of the controller that the node has told it to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceRecord {
    /// The controller, which removes the record when the node says nothing any more.
    pub(crate) controller: String,
    #[serde(flatten)]
    pub(crate) serving: Serving,
}

/// The last report of a tunnel client on its settings. It is not under a lease, because it is shown
/// while the client is away, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelClientRecord {
    /// When the report arrived that differs from the one before.
    pub(crate) at_unix_ms: u64,
    pub(crate) report: ClientReport,
}

/// An event without its number, which is the revision that wrote it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EventRecord {
    pub(crate) at_unix_ms: u64,
    pub(crate) tenant: Option<Name>,
    pub(crate) node: Option<Name>,
    pub(crate) flow: Option<Name>,
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl EventRecord {
    /// Returns the event. `written` is the revision that wrote the record.
    pub(crate) fn event(self, written: Revision) -> Event {
        Event {
            number: written,
            at_unix_ms: self.at_unix_ms,
            tenant: self.tenant,
            node: self.node,
            flow: self.flow,
            kind: self.kind,
            message: self.message,
        }
    }
}

/// A change and its author. The revision that wrote this record is the revision after the change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AuditRecord {
    pub(crate) at_unix_ms: u64,
    pub(crate) actor: Actor,
    pub(crate) address: Option<IpAddr>,
    pub(crate) request: Option<String>,
    pub(crate) tenant: Option<Name>,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) action: String,
    pub(crate) before: Option<u64>,
    pub(crate) is_removal: bool,
}

/// The format of the store, see [`crate::format`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FormatRecord {
    pub(crate) format: u32,
    /// The version of the controller that wrote the record.
    pub(crate) version: String,
}

/// Encodes a record for the store.
pub(crate) fn emit(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records have text for keys")
}

/// Decodes a record of the store.
///
/// # Errors
/// Returns why it cannot be read.
pub(crate) fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(value)
}

/// Decodes a record of the store. Returns `None` and logs an error for a record that cannot be
/// read.
pub(crate) fn parse<T: DeserializeOwned>(key: &str, value: &[u8]) -> Option<T> {
    decode(value)
        .inspect_err(|error| {
            tracing::error!(
                key,
                "the store contains a record that cannot be read: {error}"
            )
        })
        .ok()
}

/// Returns random bytes, hexadecimal.
pub(crate) fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    getrandom::fill(&mut bytes).expect("Linux provides random bytes");
    hex::encode(bytes)
}

/// Returns the SHA-256 digest, hexadecimal.
pub(crate) fn sha256_hex(bytes: impl AsRef<[u8]>) -> String {
    use sha2::Digest;
    hex::encode(sha2::Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewing_never_drops_the_certificate_in_use() {
        let issued = |serial: usize, expires_unix_ms| Issued {
            serial: serial.to_string(),
            expires_unix_ms,
            run_time_s: None,
        };
        let mut node = NodeRecord::of("acme".parse().unwrap());
        node.certificates = vec![issued(0, u64::MAX), issued(1, u64::MAX)];
        for serial in 2..9 {
            node.renew(issued(serial, u64::MAX), "0");
        }
        let serials: Vec<&str> = node
            .certificates
            .iter()
            .map(|issued| issued.serial.as_str())
            .collect();
        assert_eq!(serials, ["0", "7", "8"]);
        node.renew(issued(9, 1), "8");
        node.renew(issued(10, u64::MAX), "8");
        let serials: Vec<&str> = node
            .certificates
            .iter()
            .map(|issued| issued.serial.as_str())
            .collect();
        assert_eq!(
            serials,
            ["7", "8", "10"],
            "expired certificates are dropped first"
        );
    }
}

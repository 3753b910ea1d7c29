//! What is kept in the store: JSON under keys of the form `kind/name`.

use crate::store::Revision;
use hawser_control::Name;
use hawser_control::access::Token;
use hawser_control::audit::Actor;
use hawser_control::resource::{Flow, PathHealth};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

/// Certificates of one node that are accepted at once: the one in use and those that the node got and could not keep.
const MAX_CERTIFICATES: usize = 3;

/// A node, apart from what it says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) tenant: Name,
    /// Of in-band signals to the node, 32 hexadecimal digits. Made when its certificate is, so none before that.
    pub(crate) signal_key: Option<String>,
    /// Certificates that are accepted. Renewing adds one, revoking removes all.
    pub(crate) certificates: Vec<Issued>,
    /// One-time tokens. They are a part of the node, so that none outlives it and none is good for a later node of the name.
    #[serde(default)]
    pub(crate) enrolments: Vec<EnrolmentRecord>,
    /// The revision in which it was changed on request last, where a later one has only removed expired tokens.
    #[serde(default)]
    pub(crate) changed_in: Option<Revision>,
}

impl NodeRecord {
    /// A node that nobody has enrolled yet.
    pub(crate) fn of(tenant: Name) -> NodeRecord {
        NodeRecord {
            tenant,
            signal_key: None,
            certificates: vec![],
            enrolments: vec![],
            changed_in: None,
        }
    }

    /// The same without certificates and without tokens to get one.
    pub(crate) fn revoked(self) -> NodeRecord {
        NodeRecord::of(self.tenant)
    }

    /// Whether both say the same of the node, apart from its tokens.
    pub(crate) fn differs_in_tokens_only(&self, other: &NodeRecord) -> bool {
        let NodeRecord {
            tenant,
            signal_key,
            certificates,
            enrolments: _,
            changed_in: _,
        } = self;
        (tenant, signal_key, certificates)
            == (&other.tenant, &other.signal_key, &other.certificates)
    }

    /// The accepted certificate with that serial number.
    pub(crate) fn certificate(&self, serial: &str) -> Option<&Issued> {
        self.certificates
            .iter()
            .find(|issued| issued.serial == serial)
    }

    /// The revision in which it was changed on request last; `written`: the one that wrote the record.
    pub(crate) fn changed_in(&self, written: Revision) -> Revision {
        self.changed_in.unwrap_or(written)
    }

    /// Removes tokens that are too old to be used.
    pub(crate) fn forget_expired_tokens(&mut self) {
        self.enrolments
            .retain(|enrolment| unix_ms() < enrolment.expires_unix_ms);
    }

    /// Accepts one more certificate. The one with the serial number `in_use` stays, whatever became of those in between:
    /// the node may not have been able to keep them.
    pub(crate) fn renew(&mut self, issued: Issued, in_use: &str) {
        self.certificates
            .retain(|known| unix_ms() < known.expires_unix_ms || known.serial == in_use);
        let mut surplus = (self.certificates.len() + 1).saturating_sub(MAX_CERTIFICATES);
        self.certificates.retain(|known| {
            let goes = surplus > 0 && known.serial != in_use;
            surplus -= usize::from(goes);
            !goes
        });
        self.certificates.push(issued);
    }
}

/// A certificate that was issued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Issued {
    /// Hexadecimal.
    pub(crate) serial: String,
    pub(crate) expires_unix_ms: u64,
}

/// A one-time token of the node in whose record it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnrolmentRecord {
    /// Hexadecimal.
    pub(crate) id: String,
    pub(crate) secret_sha256: String,
    pub(crate) created_unix_ms: u64,
    pub(crate) expires_unix_ms: u64,
    pub(crate) used: Option<UsedRecord>,
}

/// The answer to the one who used a token, which the same key may ask for again: the first answer may have been lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsedRecord {
    pub(crate) at_unix_ms: u64,
    /// The public key's (SubjectPublicKeyInfo), hexadecimal.
    pub(crate) key_sha256: String,
    pub(crate) serial: String,
    /// PEM.
    pub(crate) certificate: String,
    pub(crate) renew_unix_ms: u64,
}

/// A flow and its number at both of its nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FlowRecord {
    pub(crate) flow: Flow,
    pub(crate) number: u16,
    /// Whether its egress has said that it eliminates the flow's copies. Kept only for flows that wait for it.
    #[serde(default)]
    pub(crate) received: bool,
    /// The revision in which operators changed it last, where a later one has only written `received`.
    #[serde(default)]
    pub(crate) changed_in: Option<Revision>,
}

impl FlowRecord {
    /// The revision in which operators changed it last; `written`: the one that wrote the record.
    pub(crate) fn changed_in(&self, written: Revision) -> Revision {
        self.changed_in.unwrap_or(written)
    }
}

/// A number of a node and whose it is. It stays when the flow goes, so that no epoch comes twice under one number: an
/// in-band signal of the flow before is then too old for the flow after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NumberRecord {
    pub(crate) flow: Option<Name>,
    /// The last one under this number, when there is no flow.
    pub(crate) epoch: u32,
}

/// An operator's token, under its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) token: Token,
    pub(crate) secret_sha256: String,
}

/// A node lives; under its lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AliveRecord {
    /// The controller that it talks to.
    pub(crate) controller: String,
    pub(crate) since_unix_ms: u64,
}

/// When a node was last heard of, written rarely. It is not under the node's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenRecord {
    pub(crate) at_unix_ms: u64,
    /// Whether it had a lease then and its loss has not been reported.
    pub(crate) is_alive: bool,
}

/// How the paths of a node are; under its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HealthRecord {
    pub(crate) paths: Vec<PathHealth>,
}

/// A node is a server of tunnels; under its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelRecord {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) clients: u32,
    pub(crate) most_clients: u32,
    pub(crate) draining: bool,
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

/// A change and its author. The revision of this record is the one after the change.
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

/// Keys. Names have no slash.
pub(crate) mod key {
    use hawser_control::Name;

    pub(crate) const AUTHORITY: &str = "authority";
    pub(crate) const LEADER: &str = "leader";
    pub(crate) const TENANT: &str = "tenant/";
    pub(crate) const NODE: &str = "node/";
    pub(crate) const REGISTRATION: &str = "registration/";
    pub(crate) const ALIVE: &str = "alive/";
    pub(crate) const SEEN: &str = "seen/";
    pub(crate) const HEALTH: &str = "health/";
    pub(crate) const NUMBER: &str = "number/";
    pub(crate) const FLOW: &str = "flow/";
    pub(crate) const POLICY: &str = "policy/";
    pub(crate) const TOKEN: &str = "token/";
    pub(crate) const EVENT: &str = "event/";
    pub(crate) const AUDIT: &str = "audit/";
    pub(crate) const OBSERVATION: &str = "observation/";
    pub(crate) const TUNNEL: &str = "tunnel/";
    pub(crate) const INNER: &str = "inner/";
    pub(crate) const USED: &str = "used/";

    pub(crate) fn of(kind: &str, name: &Name) -> String {
        format!("{kind}{name}")
    }

    /// Written with each reference to the entry of that kind and name, see [`crate::reference`].
    pub(crate) fn used(kind: &str, name: &Name) -> String {
        format!("{USED}{kind}{name}")
    }

    /// Of the number of a client's inner addresses, within each prefix.
    pub(crate) fn inner(number: u64) -> String {
        format!("{INNER}{number:020}")
    }

    pub(crate) fn number(node: &Name, number: u16) -> String {
        format!("{NUMBER}{node}/{number:04}")
    }
}

/// As it is stored.
pub(crate) fn emit(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records have text for keys")
}

/// As it was stored. What another version wrote and this one cannot read is left out, loudly.
pub(crate) fn parse<T: DeserializeOwned>(key: &str, value: &[u8]) -> Option<T> {
    serde_json::from_slice(value)
        .inspect_err(|error| {
            tracing::error!(
                key,
                "the store holds something that this version cannot read: {error}"
            )
        })
        .ok()
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// So many random bytes, hexadecimal.
pub(crate) fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    getrandom::fill(&mut bytes).expect("every Linux has random bytes");
    hex::encode(bytes)
}

/// SHA-256, hexadecimal.
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
        assert_eq!(serials, ["7", "8", "10"], "what has ended goes first");
    }
}

//! Who may ask what: how a node comes by its certificate and an operator by a token.
//!
//! A controller presents the certificate of its authority along with its own, so that a node that has nothing but a token
//! finds there the one whose digest the token names.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What the token that enrols a node is to be: `POST /v1/nodes/{node}/enrolment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewEnrolment {
    /// Whose the node will be.
    pub tenant: Name,
    /// How long the token can be used, seconds; up to 30 days.
    #[serde(default = "NewEnrolment::valid_s")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2_592_000))]
    pub valid_s: u32,
}

impl NewEnrolment {
    /// One day.
    pub const fn valid_s() -> u32 {
        24 * 60 * 60
    }
}

/// A token that enrols one node once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enrolment {
    /// The node that it enrols.
    pub node: Name,
    /// By which the token is listed and withdrawn; no secret.
    pub id: String,
    /// An [`EnrolmentToken`] as text. Shown once.
    pub token: String,
    /// When it stops to be of use, milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// An enrolment token without its secret: `GET /v1/enrolments`. It goes with its node, when the node's certificates are
/// revoked, and when it expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedEnrolment {
    /// The node that it enrols.
    pub node: Name,
    /// Whose the node is.
    pub tenant: Name,
    /// The second part of the token after the node's name.
    pub id: String,
    /// When it was made, milliseconds since 1970.
    pub created_unix_ms: u64,
    /// When it stops to be of use, milliseconds since 1970.
    pub expires_unix_ms: u64,
    /// When a node was enrolled by it, milliseconds since 1970; none: it was not used yet. A used token is good for
    /// nothing but the same answer to the same key.
    pub used_unix_ms: Option<u64>,
}

/// The parts of the text `hawser1.NODE.ID.SECRET.DIGEST`.
#[derive(Clone, PartialEq, Eq)]
pub struct EnrolmentToken {
    /// The node that it enrols.
    pub node: Name,
    /// Names the token, 16 hexadecimal digits.
    pub id: String,
    /// Known to the bearer alone, 64 hexadecimal digits.
    pub secret: String,
    /// SHA-256 of the authority's certificate (DER), 64 hexadecimal digits.
    pub authority_sha256: String,
}

/// A text that is no [`EnrolmentToken`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no enrolment token, which is hawser1.NODE.ID.SECRET.DIGEST; perhaps it was cut off"
)]
pub struct InvalidToken;

impl FromStr for EnrolmentToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let parts: Vec<&str> = text.trim().split('.').collect();
        let ["hawser1", node, id, secret, authority] = parts[..] else {
            return Err(InvalidToken);
        };
        let is_hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
        };
        if !is_hex(id, 16) || !is_hex(secret, 64) || !is_hex(authority, 64) {
            return Err(InvalidToken);
        }
        Ok(EnrolmentToken {
            node: node.parse().map_err(|_| InvalidToken)?,
            id: id.to_owned(),
            secret: secret.to_owned(),
            authority_sha256: authority.to_owned(),
        })
    }
}

impl EnrolmentToken {
    /// As it is given to a node.
    pub fn text(&self) -> String {
        let EnrolmentToken {
            node,
            id,
            secret,
            authority_sha256,
        } = self;
        format!("hawser1.{node}.{id}.{secret}.{authority_sha256}")
    }
}

/// A node asks for its first certificate: `POST /v1/enrol`, without a client certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Enrol {
    /// The whole text of the token.
    pub token: String,
    /// A certificate signing request, PEM. The name comes from the token; what the request says of names is ignored.
    /// The same key may come again with the same token, and gets the same certificate.
    pub csr: String,
    /// How the node calls itself; another node's token is refused and stays as it is. None: as the token says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Name>,
}

/// A node asks for its next certificate: `POST /v1/nodes/{node}/certificate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// A certificate signing request, PEM.
    pub csr: String,
}

/// A node's certificate, the answer to [`Enrol`] and [`Renew`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Certificate {
    /// The node that it is for: its common name.
    pub node: Name,
    /// The certificate, PEM.
    pub certificate: String,
    /// The certificate of the authority that signed it, PEM.
    pub authority: String,
    /// From when on the node asks for the next one, milliseconds since 1970.
    pub renew_unix_ms: u64,
    /// When it ends, milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// What an operator may do. Each scope includes those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// See.
    Read,
    /// Change flows and policies, enrol and revoke nodes.
    Operate,
    /// Tenants and tokens too.
    Admin,
}

/// The token that is to be made: `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Unique; events name what an operator did by it.
    pub name: Name,
    /// What its bearer may do.
    pub scope: Scope,
    /// The one tenant that its bearer sees; none: all.
    #[serde(default)]
    pub tenant: Option<Name>,
}

/// An operator's token, without the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// Unique.
    pub name: Name,
    /// What its bearer may do.
    pub scope: Scope,
    /// The one tenant that its bearer sees; none: all.
    pub tenant: Option<Name>,
    /// When it was made, milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// A new token with its secret: the answer to [`NewToken`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedToken {
    /// What it is.
    #[serde(flatten)]
    pub token: Token,
    /// What goes behind `Authorization: Bearer`. Shown once.
    pub secret: String,
}

/// Whom the controller takes the caller for: `GET /v1/me`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Caller {
    /// The bearer of a token.
    Operator(Token),
    /// The holder of a certificate.
    Node {
        /// Its name.
        name: Name,
        /// Whose it is.
        tenant: Name,
        /// When its certificate ends, milliseconds since 1970.
        expires_unix_ms: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_not_when_a_part_is_missing() {
        let token = EnrolmentToken {
            node: "edge-1".parse().unwrap(),
            id: "0123456789abcdef".to_owned(),
            secret: "5e".repeat(32),
            authority_sha256: "a0".repeat(32),
        };
        let text = token.text();
        assert!(format!(" {text}\n").parse() == Ok(token));
        for wrong in [
            "",
            "hawser1",
            &text[..text.len() - 1],
            &format!("{text}.x"),
            &text.replace("edge-1", ""),
        ] {
            assert!(wrong.parse::<EnrolmentToken>().is_err(), "{wrong}");
        }
    }
}

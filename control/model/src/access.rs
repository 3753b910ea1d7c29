//! Access: how a node gets its certificate and an operator gets a token.
//!
//! A controller presents the certificate of its authority along with its own, so that a node that
//! has only a token can find the authority whose digest the token contains.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A request for a token that enrols a node: `POST /v1/nodes/{node}/enrolment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewEnrolment {
    /// The tenant that the node will belong to.
    pub tenant: Name,
    /// The validity of the token, seconds. At most 30 days.
    #[serde(default = "NewEnrolment::valid_s")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2_592_000))]
    pub valid_s: u32,
}

impl NewEnrolment {
    /// The default: one day.
    pub const fn valid_s() -> u32 {
        24 * 60 * 60
    }
}

/// A token that enrols one node once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enrolment {
    /// The node that the token enrols.
    pub node: Name,
    /// The identifier under which the token is listed and withdrawn. It is not secret.
    pub id: String,
    /// The [`EnrolmentToken`] as text. It is shown only once.
    pub token: String,
    /// When the token expires, milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// An enrolment token without its secret: `GET /v1/enrolments`. It is removed with its node, when
/// the node's certificates are revoked, and when it expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedEnrolment {
    /// The node that the token enrols.
    pub node: Name,
    /// The tenant that the node belongs to.
    pub tenant: Name,
    /// The identifier of the token, the part of its text after the node's name.
    pub id: String,
    /// When the token was created, milliseconds since 1970.
    pub created_unix_ms: u64,
    /// When the token expires, milliseconds since 1970.
    pub expires_unix_ms: u64,
    /// When a node was enrolled with the token, milliseconds since 1970; `null` if it is unused. A
    /// used token only repeats the same response to the same key.
    pub used_unix_ms: Option<u64>,
}

/// The parts of the text `hawser1.NODE.ID.SECRET.DIGEST`.
#[derive(Clone, PartialEq, Eq)]
pub struct EnrolmentToken {
    /// The node that the token enrols.
    pub node: Name,
    /// The identifier of the token, 16 hexadecimal digits.
    pub id: String,
    /// The secret, known only to the bearer, 64 hexadecimal digits.
    pub secret: String,
    /// The SHA-256 digest of the authority's certificate (DER), 64 hexadecimal digits.
    pub authority_sha256: String,
}

/// The error for a text that is not an [`EnrolmentToken`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an enrolment token of the form hawser1.NODE.ID.SECRET.DIGEST; check that it was copied in full"
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
    /// Returns the token as the text that a node gets.
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

/// A node's request for its first certificate: `POST /v1/enrol`, without a client certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enrol {
    /// The full text of the token.
    pub token: String,
    /// A certificate signing request, PEM. The name in the certificate comes from the token; names
    /// in the request are ignored. The same key may be sent again with the same token and gets the
    /// same certificate.
    pub csr: String,
    /// The name of the node by its own configuration. A token for another node is rejected and
    /// remains valid. If absent, the name in the token is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Name>,
}

/// A node's request for its next certificate: `POST /v1/nodes/{node}/certificate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Renew {
    /// A certificate signing request, PEM.
    pub csr: String,
}

/// A node's certificate, the response to [`Enrol`] and [`Renew`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Certificate {
    /// The node that the certificate is for, its common name.
    pub node: Name,
    /// The certificate, PEM.
    pub certificate: String,
    /// The certificate of the authority that signed it, PEM.
    pub authority: String,
    /// When the node should request its next certificate, milliseconds since 1970.
    pub renew_unix_ms: u64,
    /// When the certificate expires, milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// The authorities of a controller, as returned by `GET /v1/authority`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Authorities {
    /// The trusted authorities, the one that issues certificates first.
    pub authorities: Vec<TrustedAuthority>,
}

/// An authority that a controller trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrustedAuthority {
    /// The SHA-256 digest of its certificate (DER), hexadecimal.
    pub sha256: String,
    /// Whether it issues certificates.
    pub issues: bool,
    /// When its certificate expires, milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// The authorities that a node trusts from now on: the event `authority` of `GET
/// /v1/nodes/{node}/stream`, sent once on every stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustedAuthorities {
    /// The certificates, PEM, at least one.
    pub certificates: String,
}

/// The rights of an operator. Each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Read resources.
    Read,
    /// Change flows and policies, enrol and revoke nodes.
    Operate,
    /// Also manage tenants and tokens.
    Admin,
}

/// A request for an operator's token: `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewToken {
    /// The name of the token, unique. Events name the operator by it.
    pub name: Name,
    /// The rights of the token's bearer.
    pub scope: Scope,
    /// The only tenant that the token's bearer can see; `null` for all.
    #[serde(default)]
    pub tenant: Option<Name>,
    /// The validity of the token, seconds, at most ten years; `null` for no end.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 315_360_000))]
    pub valid_s: Option<u32>,
}

/// The longest validity of an operator's token that ends, seconds: ten years.
pub const MAX_TOKEN_S: u32 = 3650 * 24 * 60 * 60;

/// A request for a new secret of an operator's token: `POST /v1/tokens/{token}/secret`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewSecret {
    /// The time for which the present secret stays valid, seconds, at most 30 days, and at most to the
    /// present end of the token.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 2_592_000))]
    pub overlap_s: u32,
    /// The validity of the token from now on, seconds, at most ten years; `null` to keep its end.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 315_360_000))]
    pub valid_s: Option<u32>,
}

impl NewSecret {
    /// The longest time for which the present secret can stay valid: 30 days.
    pub const MAX_OVERLAP_S: u32 = 30 * 24 * 60 * 60;
}

/// An operator's token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// The name of the token, unique.
    pub name: Name,
    /// The rights of the token's bearer.
    pub scope: Scope,
    /// The only tenant that the token's bearer can see; `null` for all.
    pub tenant: Option<Name>,
    /// When the token was created, milliseconds since 1970.
    pub created_unix_ms: u64,
    /// When the token expires, milliseconds since 1970; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
    /// When the token was last used, milliseconds since 1970, to the hour; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_unix_ms: Option<u64>,
}

/// A new token with its secret: the response to [`NewToken`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedToken {
    /// The token.
    #[serde(flatten)]
    pub token: Token,
    /// The secret, sent as `Authorization: Bearer SECRET`. It is shown only once.
    pub secret: String,
}

/// The identity of the caller as the controller sees it: `GET /v1/me`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Caller {
    /// The bearer of a token.
    Operator(Token),
    /// The holder of a certificate.
    Node {
        /// The name of the node.
        name: Name,
        /// The tenant that the node belongs to.
        tenant: Name,
        /// When the node's certificate expires, milliseconds since 1970.
        expires_unix_ms: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips_and_needs_all_its_parts() {
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

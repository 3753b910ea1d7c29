//! Who may ask what: how a node comes by its certificate and an operator by a token.
//!
//! A controller presents the certificate of its authority along with its own, so that a node that has nothing but a token
//! finds there the one whose digest the token names.

use crate::name::Name;
use serde::{Deserialize, Serialize};

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
    /// `hawser1.ID.SECRET.DIGEST`; the digest is SHA-256 of the authority's certificate (DER), hexadecimal. Shown once.
    pub token: String,
    /// When it stops to be of use, milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// A node asks for its first certificate: `POST /v1/enrol`, without a client certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Enrol {
    /// The whole text of the token.
    pub token: String,
    /// A certificate signing request, PEM. The name comes from the token; what the request says of names is ignored.
    pub csr: String,
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

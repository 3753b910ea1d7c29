//! The audit of changes: `GET /v1/audit`.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A change and its author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// Rises; where a list of entries goes on.
    pub number: u64,
    /// Milliseconds since 1970, by the controller's clock.
    pub at_unix_ms: u64,
    /// The author.
    pub actor: Actor,
    /// The source address of the request; none: the controller's own change.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<IpAddr>,
    /// The request: the header `x-request-id` of its answer, and a field of the controller's log.
    pub request: Option<String>,
    /// The tenant to which the changed thing belongs; none: no tenant.
    pub tenant: Option<Name>,
    /// The kind of thing, such as `flow`.
    pub kind: String,
    /// Its name; `NODE/ID` for an enrolment token.
    pub name: String,
    /// The action, such as `changed`.
    pub action: String,
    /// The revision before the change, as in its ETag; none: the thing did not exist.
    pub before: Option<u64>,
    /// The revision after the change; none: the thing was removed.
    pub after: Option<u64>,
}

impl AuditEntry {
    /// The name of the changed thing, without that of a part: of an enrolment token (`NODE/ID`) the node.
    pub fn owner(&self) -> &str {
        self.name
            .split_once('/')
            .map_or(&self.name, |(owner, _)| owner)
    }
}

/// The author of a change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Actor {
    /// Its role.
    pub role: Role,
    /// The name of the operator's token, of the node or of the controller.
    pub name: String,
}

/// The role of an author.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The bearer of a token.
    Operator,
    /// The holder of a certificate or of an enrolment token.
    Node,
    /// A controller by itself.
    Controller,
}

//! The audit log: `GET /v1/audit`.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A change and its author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// The number of the entry. Later entries have greater numbers; a list continues after one.
    pub number: u64,
    /// The time of the change by the controller's clock, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The author.
    pub actor: Actor,
    /// The source address of the request; `null` for a change that the controller made itself.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<IpAddr>,
    /// The identifier of the request, as in the `x-request-id` header of its response and in the
    /// controller's log.
    pub request: Option<String>,
    /// The tenant that the changed resource belongs to; `null` if it belongs to none.
    pub tenant: Option<Name>,
    /// The kind of the changed resource, such as `flow`.
    pub kind: String,
    /// The name of the changed resource; `NODE/ID` for an enrolment token.
    pub name: String,
    /// The action, such as `changed`.
    pub action: String,
    /// The revision before the change, as in its ETag; `null` if the resource did not exist.
    pub before: Option<u64>,
    /// The revision after the change; `null` if the resource was removed.
    pub after: Option<u64>,
}

impl AuditEntry {
    /// Returns the name of the changed resource without that of a part: the node for an enrolment
    /// token (`NODE/ID`).
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
    /// The role of the author.
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

//! The audit log: changes and their authors. It is separate from events, so that events of nodes
//! cannot displace its entries. The commit that makes a change also writes its entry.

use crate::record::{AuditRecord, emit, key, random_hex};
use crate::request::RequestId;
use crate::store::{Revision, Write};
use hawser_model::Name;
use hawser_model::audit::{Actor, AuditEntry, Role};
use std::net::IpAddr;

/// The author of a change, and the request.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    actor: Actor,
    /// The source address and the identifier of the request; `None` for a change by the controller
    /// itself.
    request: Option<(IpAddr, RequestId)>,
}

/// A requested change, before it is written.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    origin: Origin,
    name: String,
    before: Option<Revision>,
    is_removal: bool,
}

impl Origin {
    pub(crate) fn operator(token: &Name, address: IpAddr, request: RequestId) -> Origin {
        Origin::requested(Role::Operator, token, address, request)
    }

    pub(crate) fn node(node: &Name, address: IpAddr, request: RequestId) -> Origin {
        Origin::requested(Role::Node, node, address, request)
    }

    pub(crate) fn controller(name: &str) -> Origin {
        Origin {
            actor: Actor {
                role: Role::Controller,
                name: name.to_owned(),
            },
            request: None,
        }
    }

    fn requested(role: Role, name: &Name, address: IpAddr, request: RequestId) -> Origin {
        Origin {
            actor: Actor {
                role,
                name: name.to_string(),
            },
            request: Some((address, request)),
        }
    }

    /// Describes the creation of an entry.
    pub(crate) fn makes(&self, name: impl ToString) -> Change {
        Change {
            origin: self.clone(),
            name: name.to_string(),
            before: None,
            is_removal: false,
        }
    }

    /// Describes a change of the entry that the revision `before` wrote.
    pub(crate) fn changes(&self, name: impl ToString, before: Revision) -> Change {
        Change {
            before: Some(before),
            ..self.makes(name)
        }
    }

    /// Describes the removal of the entry that the revision `before` wrote.
    pub(crate) fn removes(&self, name: impl ToString, before: Revision) -> Change {
        Change {
            is_removal: true,
            ..self.changes(name, before)
        }
    }
}

impl Change {
    /// Returns the record of the change. `event` is the kind of its event, such as `flow_changed`.
    pub(crate) fn record(self, event: &str, tenant: Option<Name>, at_unix_ms: u64) -> AuditRecord {
        let Change {
            origin: Origin { actor, request },
            name,
            before,
            is_removal,
        } = self;
        let (kind, action) = event.rsplit_once('_').unwrap_or((event, "changed"));
        let (address, request) = request.unzip();
        AuditRecord {
            at_unix_ms,
            actor,
            address,
            request: request.map(|id| id.to_string()),
            tenant,
            kind: kind.to_owned(),
            name,
            action: action.to_owned(),
            before,
            is_removal,
        }
    }
}

impl AuditRecord {
    /// Returns the write of the record, under a key that sorts by time.
    pub(crate) fn write(&self) -> Write {
        Write::put(
            format!(
                "{}{:013}-{}",
                key::AUDIT,
                self.at_unix_ms,
                random_hex::<6>()
            ),
            emit(self),
        )
    }

    /// Logs the record.
    pub(crate) fn log(&self, number: Revision) {
        let AuditRecord {
            actor,
            kind,
            name,
            action,
            before,
            ..
        } = self;
        let (address, request) = (
            self.address.map(|address| address.to_string()),
            self.request.as_deref(),
        );
        let role = format!("{:?}", actor.role).to_lowercase();
        let actor = &actor.name;
        let tenant = self.tenant.as_ref().map(Name::as_str);
        tracing::info!(target: "audit", number, role, actor, address, request, tenant, kind, name, action, before, "{kind} {name} {action}");
    }

    /// Returns the entry as operators see it. `number` is the revision that wrote it.
    pub(crate) fn entry(self, number: Revision) -> AuditEntry {
        AuditEntry {
            number,
            at_unix_ms: self.at_unix_ms,
            actor: self.actor,
            address: self.address,
            request: self.request,
            tenant: self.tenant,
            kind: self.kind,
            name: self.name,
            action: self.action,
            before: self.before,
            after: (!self.is_removal).then_some(number),
        }
    }
}

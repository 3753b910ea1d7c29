//! The settings of tunnel clients: those of a tenant, those of one node that take precedence, and what
//! the clients say of them.

use super::extract::{Body, PageQuery, Path};
use super::filter::{Filtered, OwnerFilter};
use super::tenants;
use crate::access::{Certified, Operate, Operator, Read, Sight};
use crate::controller::{About, Controller};
use crate::observe::short;
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError, Tagged};
use crate::record::{TunnelClientRecord, emit, key, sha256_hex};
use crate::refusal::{
    BodyErrors, CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal,
};
use crate::store::{Expect, Revision, Write};
use crate::view::{NodeView, Versioned, View};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::answer::Page;
use hawser_model::tunnel::{
    ClientReport, GivenSettings, OwnedSettings, SettingsState, TunnelClient, TunnelSettings,
};
use std::sync::Arc;
use std::time::Duration;

/// The time that a client's request waits until its statement is stored. The client repeats a statement
/// that is not.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);

/// List tunnel clients and whether they have applied their settings, ordered by name
///
/// Nodes that have asked for tunnel servers, or have settings of their own.
#[utoipa::path(operation_id = "list_tunnel_clients", get, path = "/v1/tunnel-clients", tag = "operators", params(PageQuery, OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Page<TunnelClient>), CommonErrors))]
pub(super) async fn clients(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, OwnerFilter>,
) -> Result<Json<Page<TunnelClient>>, HandlerError> {
    let view = controller.view();
    let clients = view
        .nodes
        .range::<str, _>(query.range())
        .filter_map(|(name, node)| client(&view, name, node));
    let wanted = clients.filter(|client| {
        operator.sees(&client.tenant) && filter.admits(&client.tenant, [&client.node])
    });
    Ok(Json(query.page(
        wanted.map(|client| (client.node.clone(), client)),
    )?))
}

/// List the settings of tunnel clients: those of nodes and then those of tenants, ordered by name
#[utoipa::path(operation_id = "list_tunnel_settings", get, path = "/v1/tunnel-settings", tag = "operators", params(PageQuery, OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Page<OwnedSettings>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, OwnerFilter>,
) -> Result<Json<Page<OwnedSettings>>, HandlerError> {
    let view = controller.view();
    let wanted = all_settings(&view).filter(|owned| {
        operator.sees(&owned.tenant) && filter.admits(&owned.tenant, owned.node.as_ref())
    });
    let named = wanted.map(|owned| (owned.name(), owned));
    let rest = named.skip_while(|(name, _)| query.after().is_some_and(|after| **name <= *after));
    Ok(Json(query.page(rest)?))
}

/// Returns all settings, ordered by their names.
fn all_settings(view: &View) -> impl Iterator<Item = OwnedSettings> {
    let known = |settings: &Versioned<TunnelSettings>| settings.value.clone();
    let nodes = view.nodes.iter().filter_map(move |(name, node)| {
        Some(OwnedSettings {
            tenant: node.record.as_ref()?.value.tenant.clone(),
            node: Some(name.clone()),
            settings: known(node.tunnel_settings.as_ref()?),
        })
    });
    let tenants = view.tunnel_settings.iter();
    let tenants = tenants.filter(|(name, _)| view.tenants.contains_key(*name));
    nodes.chain(tenants.map(move |(name, settings)| OwnedSettings {
        tenant: name.clone(),
        node: None,
        settings: known(settings),
    }))
}

/// Get the settings of the tunnel clients of a tenant; without keys if there are none
#[utoipa::path(operation_id = "get_tunnel_settings_of_tenant", get, path = "/v1/tenants/{tenant}/tunnel-settings", tag = "operators", params(("tenant" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = TunnelSettings, headers(("ETag" = String, description = "Its revision, for `If-Match`; \"0\" if there are none"))), CommonErrors, NotFoundError))]
pub(super) async fn of_tenant(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(tenant): Path<Name>,
) -> Result<Tagged<TunnelSettings>, HandlerError> {
    controller.show_settings(&operator, Owner::Tenant(&tenant))
}

/// Set the settings of the tunnel clients of a tenant, which they take over within `report_every_ms`
#[utoipa::path(operation_id = "set_tunnel_settings_of_tenant", put, path = "/v1/tenants/{tenant}/tunnel-settings", tag = "operators", params(("tenant" = Name, Path), IfMatchHeader), request_body = TunnelSettings, security(("token" = [])),
    responses((status = 200, body = TunnelSettings, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn set_for_tenant(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(tenant): Path<Name>,
    Body(settings): Body<TunnelSettings>,
) -> Result<Tagged<TunnelSettings>, HandlerError> {
    let owner = Owner::Tenant(&tenant);
    let sight = controller.sight_of_owner(&operator, owner)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller
        .set_settings(&operator, &matching, owner, settings)
        .await
}

/// Remove the settings of the tunnel clients of a tenant
#[utoipa::path(operation_id = "delete_tunnel_settings_of_tenant", delete, path = "/v1/tenants/{tenant}/tunnel-settings", tag = "operators", params(("tenant" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Removed"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn unset_for_tenant(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(tenant): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let owner = Owner::Tenant(&tenant);
    let sight = controller.sight_of_owner(&operator, owner)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller
        .change_settings(&operator, &matching, owner, None)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get the settings of a node as a tunnel client that differ from those of its tenant; without keys if
/// there are none
#[utoipa::path(operation_id = "get_tunnel_settings_of_node", get, path = "/v1/nodes/{node}/tunnel-settings", tag = "operators", params(("node" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = TunnelSettings, headers(("ETag" = String, description = "Its revision, for `If-Match`; \"0\" if there are none"))), CommonErrors, NotFoundError))]
pub(super) async fn of_node(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(node): Path<Name>,
) -> Result<Tagged<TunnelSettings>, HandlerError> {
    controller.show_settings(&operator, Owner::Node(&node))
}

/// Set the settings of a node as a tunnel client; its keys take precedence over those of its tenant
#[utoipa::path(operation_id = "set_tunnel_settings_of_node", put, path = "/v1/nodes/{node}/tunnel-settings", tag = "operators", params(("node" = Name, Path), IfMatchHeader), request_body = TunnelSettings, security(("token" = [])),
    responses((status = 200, body = TunnelSettings, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn set_for_node(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(node): Path<Name>,
    Body(settings): Body<TunnelSettings>,
) -> Result<Tagged<TunnelSettings>, HandlerError> {
    let owner = Owner::Node(&node);
    let sight = controller.sight_of_owner(&operator, owner)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller
        .set_settings(&operator, &matching, owner, settings)
        .await
}

/// Remove the settings of a node as a tunnel client, so that those of its tenant apply
#[utoipa::path(operation_id = "delete_tunnel_settings_of_node", delete, path = "/v1/nodes/{node}/tunnel-settings", tag = "operators", params(("node" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Removed"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn unset_for_node(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(node): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let owner = Owner::Node(&node);
    let sight = controller.sight_of_owner(&operator, owner)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller
        .change_settings(&operator, &matching, owner, None)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whose tunnel clients settings are for.
#[derive(Clone, Copy)]
enum Owner<'a> {
    Tenant(&'a Name),
    Node(&'a Name),
}

impl Owner<'_> {
    /// Returns the key of the settings in the store.
    fn key(self) -> String {
        match self {
            Owner::Tenant(name) => key::of(key::TUNNEL_TENANT, name),
            Owner::Node(name) => key::of(key::TUNNEL_NODE, name),
        }
    }

    /// Returns the name of the settings in the audit log.
    fn name(self) -> String {
        match self {
            Owner::Tenant(name) => format!("tenants/{name}"),
            Owner::Node(name) => format!("nodes/{name}"),
        }
    }
}

/// The settings of an owner.
struct Stored {
    tenant: Name,
    /// Makes a commit fail if the owner was changed or deleted in the meantime.
    owner_check: Write,
    /// `None` if there are none.
    settings: Option<Versioned<TunnelSettings>>,
}

impl Stored {
    /// Returns the revision of the settings; 0 if there are none.
    fn revision(&self) -> Revision {
        self.settings
            .as_ref()
            .map_or(0, |settings| settings.revision)
    }
}

impl Controller {
    /// Returns the settings of an owner that the operator may see.
    fn settings_of<N>(&self, operator: &Operator<N>, owner: Owner<'_>) -> Result<Stored, Refusal> {
        let view = self.view();
        let (tenant, owner_key, revision, settings) = match owner {
            Owner::Tenant(name) => {
                let tenant = view.tenants.get(name).filter(|_| operator.sees(name));
                let revision = tenant.ok_or_else(|| tenants::missing(name))?.revision;
                let settings = view.tunnel_settings.get(name);
                (name, key::of(key::TENANT, name), revision, settings)
            }
            Owner::Node(name) => {
                let node = view.node(name);
                let node = node.filter(|(_, record)| operator.sees(&record.value.tenant));
                let (node, record) = node.ok_or_else(|| Refusal::missing_node(name))?;
                let (tenant, settings) = (&record.value.tenant, node.tunnel_settings.as_ref());
                (tenant, key::of(key::NODE, name), record.revision, settings)
            }
        };
        Ok(Stored {
            tenant: tenant.clone(),
            owner_check: Write::check(owner_key, Expect::Revision(revision)),
            settings: settings.cloned(),
        })
    }

    /// Rejects access to the settings of an owner that the operator may not see.
    fn sight_of_owner<N>(
        &self,
        operator: &Operator<N>,
        owner: Owner<'_>,
    ) -> Result<Sight, Refusal> {
        match owner {
            Owner::Tenant(name) => {
                let sight = operator.sight(Some(name), |tenant| Some(tenant));
                sight.ok_or_else(|| tenants::missing(name))
            }
            Owner::Node(name) => self.sight_of_node(operator, name),
        }
    }

    fn show_settings(
        &self,
        operator: &Operator<Read>,
        owner: Owner<'_>,
    ) -> Result<Tagged<TunnelSettings>, HandlerError> {
        let stored = self.settings_of(operator, owner)?;
        let revision = stored.revision();
        let settings = stored.settings.map(|settings| settings.value);
        Ok(Tagged(revision, settings.unwrap_or_default()))
    }

    async fn set_settings(
        &self,
        operator: &Operator<Operate>,
        matching: &Precondition,
        owner: Owner<'_>,
        settings: TunnelSettings,
    ) -> Result<Tagged<TunnelSettings>, HandlerError> {
        settings.check().map_err(Refusal::meaningless)?;
        let revision = self
            .change_settings(operator, matching, owner, Some(&settings))
            .await?;
        Ok(Tagged(revision, settings))
    }

    /// Replaces the settings of an owner, or removes them if `new` is `None`. Returns their revision.
    async fn change_settings(
        &self,
        operator: &Operator<Operate>,
        matching: &Precondition,
        owner: Owner<'_>,
        new: Option<&TunnelSettings>,
    ) -> Result<Revision, HandlerError> {
        self.retrying(|| self.try_change_settings(operator, matching, owner, new))
            .await
    }

    async fn try_change_settings(
        &self,
        operator: &Operator<Operate>,
        matching: &Precondition,
        owner: Owner<'_>,
        new: Option<&TunnelSettings>,
    ) -> Result<Revision, HandlerError> {
        let stored = self.settings_of(operator, owner)?;
        let revision = stored.revision();
        matching.check(revision)?;
        let read = match revision {
            0 => Expect::Absent,
            revision => Expect::Revision(revision),
        };
        let known = stored.settings.as_ref().map(|settings| &settings.value);
        if known == new {
            // The view may be behind the store, so check that nothing has changed.
            let check = Write::check(owner.key(), read);
            self.store(&operator.checked)
                .commit(vec![stored.owner_check, check])
                .await?;
            return Ok(revision);
        }
        let origin = &operator.origin;
        let (write, by, kind, done) = match new {
            Some(new) => {
                let by = match revision {
                    0 => origin.makes(owner.name()),
                    revision => origin.changes(owner.name(), revision),
                };
                let write = Write::put(owner.key(), emit(new));
                (write, by, "tunnel_settings_changed", "changed")
            }
            None => {
                let by = origin.removes(owner.name(), revision);
                let write = Write::delete(owner.key());
                (write, by, "tunnel_settings_deleted", "removed")
            }
        };
        let about = About::tenant(&stored.tenant).by(by);
        let who = &operator.token.name;
        let (about, message) = match owner {
            Owner::Tenant(name) => (
                about,
                format!("{who} {done} the settings of the tunnel clients of {name}"),
            ),
            Owner::Node(name) => (
                about.node(name),
                format!("{who} {done} the settings of {name} as a tunnel client"),
            ),
        };
        let writes = vec![stored.owner_check, write.when(read)];
        Ok(self
            .commit(&operator.checked, writes, about, kind, message)
            .await?)
    }

    /// Returns the settings for a client; `None` if it was deleted.
    pub(super) fn given_settings(&self, caller: &Certified) -> Option<GivenSettings> {
        let (view, node) = (self.view(), &caller.node.node);
        let settings = settings_for(&view, &caller.tenant, view.nodes.get(node)?);
        Some(GivenSettings::new(
            digest(&settings),
            settings,
            view.as_of(),
        ))
    }

    /// Stores what a client says of its settings. If this fails or takes too long, the client gets its
    /// servers nevertheless, and repeats the statement with its next request.
    pub(super) async fn note_client(&self, caller: &Certified, mut report: ClientReport) {
        if let Some(refused) = &mut report.refused {
            refused.reason = short(&refused.reason);
        }
        let noted = tokio::time::timeout(NOTE_TIMEOUT, self.try_note_client(caller, report));
        if !matches!(noted.await, Ok(Ok(()))) {
            tracing::debug!(node = %caller.node.node, "the statement of a tunnel client was not stored");
        }
    }

    async fn try_note_client(
        &self,
        caller: &Certified,
        report: ClientReport,
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let known = match self.view().nodes.get(node) {
            Some(node) => node.tunnel_client.clone().map(|known| known.report),
            None => return Ok(()),
        };
        if known.as_ref() == Some(&report) || !self.admits_change(caller).await? {
            return Ok(());
        }
        let refused = report.refused.clone();
        let before = known.and_then(|known| known.refused);
        let news = refused.filter(|refused| before.as_ref() != Some(refused));
        let record = TunnelClientRecord {
            at_unix_ms: unix_ms(),
            report,
        };
        let writes = vec![
            self.certificate_check(&caller.node)?,
            Write::put(key::of(key::TUNNEL_CLIENT, node), emit(&record)),
        ];
        match news {
            Some(refused) if self.admits_event(caller).await? => {
                let message = format!("{node} cannot apply its settings: {}", refused.reason);
                let about = About::tenant(&caller.tenant).node(node);
                self.commit(
                    &caller.checked,
                    writes,
                    about,
                    "tunnel_settings_refused",
                    message,
                )
                .await?;
            }
            _ => {
                // The key of this write marks the revision as complete in the view, see `View::apply`.
                let revision = self.store(&caller.checked).commit(writes).await?;
                self.wait_until_applied(revision).await;
            }
        }
        Ok(())
    }
}

/// Returns the settings for a node of that tenant.
fn settings_for(view: &View, tenant: &Name, node: &NodeView) -> TunnelSettings {
    let known = |settings: Option<&Versioned<TunnelSettings>>| {
        settings.map_or_else(TunnelSettings::default, |settings| settings.value.clone())
    };
    let of_tenant = known(view.tunnel_settings.get(tenant));
    known(node.tunnel_settings.as_ref()).over(&of_tenant)
}

/// Identifies the settings for a client.
fn digest(settings: &TunnelSettings) -> String {
    sha256_hex(emit(settings))
}

/// Returns a node as a tunnel client; `None` if nothing is known of it as such.
fn client(view: &View, name: &Name, node: &NodeView) -> Option<TunnelClient> {
    let tenant = &node.record.as_ref()?.value.tenant;
    let said = node.tunnel_client.as_ref();
    if said.is_none() && node.tunnel_settings.is_none() {
        return None;
    }
    let settings = settings_for(view, tenant, node);
    let report = said.map(|said| &said.report);
    let (state, reason) = match report {
        Some(report) => SettingsState::of(&digest(&settings), report),
        None => (SettingsState::Pending, None),
    };
    // The report is about these settings if they are the ones in force.
    let in_force = report.filter(|_| state == SettingsState::Applied);
    Some(TunnelClient {
        node: name.clone(),
        tenant: tenant.clone(),
        settings,
        state,
        reason,
        unmatched: in_force.map_or_else(Vec::new, |report| report.unmatched.clone()),
        since_unix_ms: said.map(|said| said.at_unix_ms),
    })
}

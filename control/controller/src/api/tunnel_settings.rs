//! The settings of nodes as tunnel clients, and what the clients say of them.

use super::extract::{Body, PageQuery, Path};
use super::filter::{Filtered, OwnerFilter};
use crate::access::{Certified, Operate, Operator, Read};
use crate::controller::{About, Controller};
use crate::observe::short;
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError, Tagged};
use crate::record::{NodeRecord, TunnelClientRecord, emit, key};
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
    ClientReport, GivenSettings, SettingsState, TunnelClient, TunnelSettings,
};
use std::sync::Arc;
use std::time::Duration;

/// The time that a client's request waits until its statement is stored. The client repeats a statement
/// that is not.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);

/// List tunnel clients and whether they have applied their settings, ordered by name
///
/// Nodes that have asked for tunnel servers, or have settings.
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
        .filter_map(|(name, node)| client(name, node));
    let wanted = clients.filter(|client| {
        operator.sees(&client.tenant) && filter.admits(&client.tenant, [&client.node])
    });
    Ok(Json(query.page(
        wanted.map(|client| (client.node.clone(), client)),
    )?))
}

/// Get the settings of a node as a tunnel client; without keys if there are none
#[utoipa::path(operation_id = "get_tunnel_settings", get, path = "/v1/nodes/{node}/tunnel-settings", tag = "operators", params(("node" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = TunnelSettings, headers(("ETag" = String, description = "Its revision, for `If-Match`; \"0\" if none were ever set"))), CommonErrors, NotFoundError))]
pub(super) async fn show(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(node): Path<Name>,
) -> Result<Tagged<TunnelSettings>, HandlerError> {
    let view = controller.view();
    let (node, _) = node_of(&view, &operator, &node)?;
    let settings = node.tunnel_settings.clone();
    Ok(
        settings.map_or(Tagged(0, TunnelSettings::default()), |settings| {
            Tagged(settings.revision, settings.value)
        }),
    )
}

/// Set the settings of a node as a tunnel client, which it takes over within `report_every_ms`
#[utoipa::path(operation_id = "set_tunnel_settings", put, path = "/v1/nodes/{node}/tunnel-settings", tag = "operators", params(("node" = Name, Path), IfMatchHeader), request_body = TunnelSettings, security(("token" = [])),
    responses((status = 200, body = TunnelSettings, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn set(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(node): Path<Name>,
    Body(settings): Body<TunnelSettings>,
) -> Result<Tagged<TunnelSettings>, HandlerError> {
    settings.check().map_err(Refusal::meaningless)?;
    let revision = controller
        .set_settings(&operator, matching, &node, &settings)
        .await?;
    Ok(Tagged(revision, settings))
}

/// Remove the settings of a node as a tunnel client, so that its file applies
#[utoipa::path(operation_id = "delete_tunnel_settings", delete, path = "/v1/nodes/{node}/tunnel-settings", tag = "operators", params(("node" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Removed"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn delete(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(node): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let none = TunnelSettings::default();
    controller
        .set_settings(&operator, matching, &node, &none)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns a node that the operator may see.
fn node_of<'a, N>(
    view: &'a View,
    operator: &Operator<N>,
    name: &Name,
) -> Result<(&'a NodeView, &'a Versioned<NodeRecord>), Refusal> {
    let node = view.node(name);
    let node = node.filter(|(_, record)| operator.sees(&record.value.tenant));
    node.ok_or_else(|| Refusal::missing_node(name))
}

impl Controller {
    /// Replaces the settings of a node. Returns their revision. Empty ones stay in the store, so that a
    /// client knows that they replace those before.
    async fn set_settings(
        &self,
        operator: &Operator<Operate>,
        matching: IfMatch,
        node: &Name,
        new: &TunnelSettings,
    ) -> Result<Revision, HandlerError> {
        let sight = self.sight_of_node(operator, node)?;
        let matching = matching.known_to(self, &operator.checked, sight).await?;
        self.retrying(|| self.try_set_settings(operator, &matching, node, new))
            .await
    }

    async fn try_set_settings(
        &self,
        operator: &Operator<Operate>,
        matching: &Precondition,
        name: &Name,
        new: &TunnelSettings,
    ) -> Result<Revision, HandlerError> {
        let (tenant, owner_check, known) = {
            let view = self.view();
            let (node, record) = node_of(&view, operator, name)?;
            let of_node = Expect::Revision(record.revision);
            (
                record.value.tenant.clone(),
                Write::check(key::of(key::NODE, name), of_node),
                node.tunnel_settings.clone(),
            )
        };
        let revision = known.as_ref().map_or(0, |known| known.revision);
        matching.check(revision)?;
        let read = match revision {
            0 => Expect::Absent,
            revision => Expect::Revision(revision),
        };
        let key = key::of(key::TUNNEL_SETTINGS, name);
        if known.map_or_else(TunnelSettings::default, |known| known.value) == *new {
            // The view may be behind the store, so check that nothing has changed.
            let writes = vec![owner_check, Write::check(key, read)];
            self.store(&operator.checked).commit(writes).await?;
            return Ok(revision);
        }
        let (by, kind, done) = match new.is_empty() {
            true => {
                let by = operator.origin.removes(name.to_string(), revision);
                (by, "tunnel_settings_deleted", "removed")
            }
            false => {
                let by = match revision {
                    0 => operator.origin.makes(name.to_string()),
                    revision => operator.origin.changes(name.to_string(), revision),
                };
                (by, "tunnel_settings_changed", "changed")
            }
        };
        let about = About::tenant(&tenant).by(by).node(name);
        let who = &operator.token.name;
        let message = format!("{who} {done} the settings of {name} as a tunnel client");
        let writes = vec![owner_check, Write::put(key, emit(new)).when(read)];
        Ok(self
            .commit(&operator.checked, writes, about, kind, message)
            .await?)
    }

    /// Returns the settings for a client; `None` if it was deleted.
    pub(super) fn given_settings(&self, caller: &Certified) -> Option<GivenSettings> {
        let view = self.view();
        let (node, record) = view.node(&caller.node.node)?;
        let (revision, settings) = settings_for(node, record);
        Some(GivenSettings {
            incarnation: view.incarnation.clone()?,
            revision,
            settings,
        })
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

/// Returns the settings for a node, and their revision. Without any, it is that of the node, which is
/// later than the settings of an earlier node of the name.
fn settings_for(node: &NodeView, record: &Versioned<NodeRecord>) -> (Revision, TunnelSettings) {
    match &node.tunnel_settings {
        Some(settings) => (settings.revision, settings.value.clone()),
        None => (record.revision, TunnelSettings::default()),
    }
}

/// Returns a node as a tunnel client; `None` if nothing is known of it as such.
fn client(name: &Name, node: &NodeView) -> Option<TunnelClient> {
    let record = node.record.as_ref()?;
    let said = node.tunnel_client.as_ref();
    let (revision, settings) = settings_for(node, record);
    if said.is_none() && settings.is_empty() {
        return None;
    }
    let (state, reason) = match said {
        Some(said) => SettingsState::of(revision, &said.report),
        None => (SettingsState::Pending, None),
    };
    Some(TunnelClient {
        node: name.clone(),
        tenant: record.value.tenant.clone(),
        settings,
        state,
        reason,
        since_unix_ms: said.map(|said| said.at_unix_ms),
    })
}

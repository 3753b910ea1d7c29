//! Filters of lists.

use crate::controller::Controller;
use crate::refusal::Refusal;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use hawser_model::Name;
use hawser_model::resource::{Event, Node};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// The query of a list: a page `P` of the items that the filter `F` admits.
pub(crate) struct Filtered<P, F> {
    pub(crate) page: P,
    pub(crate) filter: F,
}

/// Only items of a tenant, and of a node.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnerFilter {
    /// Only items of this tenant.
    #[param(required = false, value_type = Name)]
    tenant: Option<Name>,
    /// Only items that this node is a part of.
    #[param(required = false, value_type = Name)]
    node: Option<Name>,
}

/// Only nodes of a tenant, and in a state.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeFilter {
    /// Only nodes of this tenant.
    #[param(required = false, value_type = Name)]
    tenant: Option<Name>,
    /// Only nodes in this state.
    #[param(required = false, inline, value_type = NodeState)]
    state: Option<NodeState>,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeState {
    /// It reports.
    Alive,
    /// It has stopped reporting.
    Lost,
    /// It has never reported.
    NeverSeen,
}

/// Only events of a tenant, about a node, about a flow, and of a kind.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventFilter {
    /// Only events of this tenant.
    #[param(required = false, value_type = Name)]
    tenant: Option<Name>,
    /// Only events about this node.
    #[param(required = false, value_type = Name)]
    node: Option<Name>,
    /// Only events about this flow.
    #[param(required = false, value_type = Name)]
    flow: Option<Name>,
    /// Only events of this kind, such as `node_lost`.
    #[param(required = false, value_type = String)]
    kind: Option<String>,
}

impl OwnerFilter {
    /// Returns the only wanted node, if there is one.
    pub(crate) fn node(&self) -> Option<&Name> {
        self.node.as_ref()
    }

    /// Returns whether items of that tenant are wanted.
    pub(crate) fn is_tenant(&self, tenant: &Name) -> bool {
        is_wanted(self.tenant.as_ref(), Some(tenant))
    }

    /// Returns whether an item of that tenant, with these nodes, is wanted.
    pub(crate) fn admits<'a>(
        &self,
        tenant: &Name,
        nodes: impl IntoIterator<Item = &'a Name>,
    ) -> bool {
        self.is_tenant(tenant)
            && (self.node.is_none()
                || nodes
                    .into_iter()
                    .any(|node| self.node.as_ref() == Some(node)))
    }
}

impl NodeFilter {
    /// Returns whether a node is wanted.
    pub(crate) fn admits(&self, node: &Node) -> bool {
        let state = match (node.alive, node.seen_unix_ms) {
            (true, _) => NodeState::Alive,
            (false, Some(_)) => NodeState::Lost,
            (false, None) => NodeState::NeverSeen,
        };
        is_wanted(self.tenant.as_ref(), Some(&node.tenant))
            && is_wanted(self.state.as_ref(), Some(&state))
    }
}

impl EventFilter {
    /// Returns whether an event is wanted.
    pub(crate) fn admits(&self, event: &Event) -> bool {
        is_wanted(self.tenant.as_ref(), event.tenant.as_ref())
            && is_wanted(self.node.as_ref(), event.node.as_ref())
            && is_wanted(self.flow.as_ref(), event.flow.as_ref())
            && is_wanted(self.kind.as_ref(), Some(&event.kind))
    }
}

fn is_wanted<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
    wanted.is_none() || wanted == found
}

impl<P: DeserializeOwned, F: DeserializeOwned> FromRequestParts<Arc<Controller>>
    for Filtered<P, F>
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Controller>) -> Result<Self, Refusal> {
        // Both parts refuse parameters that they do not know.
        let of_page = |pair: &&str| matches!(pair.split('=').next(), Some("limit" | "after"));
        let pairs = parts.uri.query().unwrap_or("").split('&');
        let (page, filter): (Vec<&str>, Vec<&str>) =
            pairs.filter(|pair| !pair.is_empty()).partition(of_page);
        Ok(Filtered {
            page: parsed(&page)?,
            filter: parsed(&filter)?,
        })
    }
}

fn parsed<T: DeserializeOwned>(pairs: &[&str]) -> Result<T, Refusal> {
    let bad = |detail: String| Refusal::new(StatusCode::BAD_REQUEST, detail);
    let uri: Uri = format!("/?{}", pairs.join("&"))
        .parse()
        .map_err(|_| bad("the query is not valid".to_owned()))?;
    match axum::extract::Query::try_from_uri(&uri) {
        Ok(axum::extract::Query(value)) => Ok(value),
        Err(error) => Err(bad(error.body_text())),
    }
}

use super::extract::{Message, Path};
use crate::access::{Certified, Operate, Operator};
use crate::check;
use crate::controller::{About, Controller};
use crate::record::{KeysRecord, emit, key};
use crate::refusal::{
    BodyErrors, CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal,
};
use crate::store::{Expect, Write};
use crate::view::Versioned;
use axum::extract::State;
use axum::http::StatusCode;
use hawser_model::Name;
use hawser_model::pair::NodeKeys;
use std::sync::Arc;

/// State a node's public keys and the derived keys in use; sent on every connection and after every
/// change
#[utoipa::path(operation_id = "state_keys", put, path = "/v1/nodes/{node}/keys", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = NodeKeys,
    responses((status = 204, description = "Stored"), CommonErrors, BodyErrors))]
pub(super) async fn state(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
    Message(keys): Message<NodeKeys>,
) -> Result<StatusCode, HandlerError> {
    caller.must_be(&node)?;
    check::node_keys(&keys).map_err(Refusal::meaningless)?;
    controller
        .retrying(|| try_state(&controller, &caller, &node, &keys))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stores the keys of a node, unless they are the known ones.
async fn try_state(
    controller: &Controller,
    caller: &Certified,
    node: &Name,
    new: &NodeKeys,
) -> Result<(), HandlerError> {
    let known = controller.keys_of(node);
    let (read, known) = match known {
        Some(Versioned { value, revision }) => (Expect::Revision(revision), value),
        None => (Expect::Absent, KeysRecord::default()),
    };
    if known.stated == *new {
        return Ok(());
    }
    controller.may_change(node)?;
    let message = (known.stated.keys != new.keys).then(|| {
        let generations = new.keys.iter().map(|key| key.generation.to_string());
        let generations: Vec<_> = generations.collect();
        format!(
            "node {node} has the public keys of the generations {}",
            generations.join(" and ")
        )
    });
    let write = Write::put(key::of(key::KEYS, node), emit(&known.restated(new.clone())));
    let writes = vec![
        controller.certificate_check(&caller.node)?,
        write.when(read),
    ];
    let Some(message) = message else {
        // The key of this write marks the revision as complete in the view, see `View::apply`.
        let revision = controller.store(&caller.checked).commit(writes).await?;
        controller.wait_until_applied(revision).await;
        return Ok(());
    };
    let about = About::tenant(&caller.tenant).node(node);
    controller
        .commit(&caller.checked, writes, about, "node_keys_changed", message)
        .await?;
    Ok(())
}

/// Make a node replace its key pair; its flows continue
#[utoipa::path(operation_id = "rekey_node", post, path = "/v1/nodes/{node}/rekey", tag = "operators", params(("node" = Name, Path)), security(("token" = [])),
    responses((status = 204, description = "The node replaces its key when it is connected and its peers have replaced theirs"), CommonErrors, NotFoundError, ConflictError))]
pub(super) async fn rekey(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    Path(node): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let (controller, operator, node) = (&*controller, &operator, &node);
    controller
        .retrying(|| async move {
            let tenant = controller.node_of(operator, node)?.value.tenant;
            let Versioned {
                mut value,
                revision,
            } = controller.keys_of(node).ok_or_else(|| {
                Refusal::conflict(format!("{node} has no public key that it could replace"))
            })?;
            value.demand_newer();
            let write =
                Write::put(key::of(key::KEYS, node), emit(&value)).when(Expect::Revision(revision));
            let message = format!("{} made {node} replace its key", operator.token.name);
            let by = operator.origin.changes(node, revision);
            let about = About::tenant(&tenant).node(node).by(by);
            controller
                .commit(
                    &operator.checked,
                    vec![write],
                    about,
                    "node_rekeyed",
                    message,
                )
                .await?;
            Ok(StatusCode::NO_CONTENT)
        })
        .await
}

impl Controller {
    fn keys_of(&self, node: &Name) -> Option<Versioned<KeysRecord>> {
        self.view().nodes.get(node)?.keys.clone()
    }
}

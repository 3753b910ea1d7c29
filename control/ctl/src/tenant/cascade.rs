//! Deletion of a tenant with all that belongs to it.

use crate::exit;
use crate::output::Output;
use crate::resource::{NodeSettings, Resource};
use anyhow::{Context, Result, bail};
use hawser_client::{Error, OperatorClient};
use hawser_model::Name;
use hawser_model::access::{Caller, Scope};
use serde::Serialize;

/// Something to be deleted.
enum Thing {
    Token(Name),
    Flow(Name),
    Track(Name),
    Settings(NodeSettings),
    Node(Name),
    Tenant(Name),
}

/// Something that was deleted, or would be.
#[derive(Serialize)]
struct Listed {
    kind: &'static str,
    name: String,
    change: &'static str,
}

/// Deletes a tenant and all that belongs to it, if `is_allowed`; otherwise prints what would be deleted,
/// and fails.
pub(super) async fn delete(
    client: &OperatorClient,
    tenant: &Name,
    is_allowed: bool,
    output: Output,
) -> Result<()> {
    check_caller(client).await?;
    let things = things_of(client, tenant).await?;
    if is_allowed {
        for thing in &things {
            thing.delete(client).await.with_context(|| {
                format!(
                    "{} {} was not deleted, but what precedes it was; repeat the command for the rest",
                    thing.kind(),
                    thing.name()
                )
            })?;
        }
    }
    let change = match is_allowed {
        true => "deleted",
        false => "would be deleted",
    };
    let listed: Vec<Listed> = things
        .iter()
        .map(|thing| Listed {
            kind: thing.kind(),
            name: thing.name(),
            change,
        })
        .collect();
    output.list(&listed, &["kind", "name", "change"], |listed| {
        vec![
            listed.kind.to_owned(),
            listed.name.clone(),
            listed.change.to_owned(),
        ]
    })?;
    if !is_allowed {
        bail!("nothing was changed: add --yes to delete all of this");
    }
    Ok(())
}

/// Refuses a token with which the tenant itself cannot be deleted. It could be one of those that would
/// be deleted first.
async fn check_caller(client: &OperatorClient) -> Result<()> {
    match client.me().await? {
        Caller::Operator(token) if token.scope == Scope::Admin && token.tenant.is_none() => Ok(()),
        _ => Err(exit::forbidden(
            "nothing was changed: this needs a token with the scope admin that is not limited to a tenant",
        )),
    }
}

/// Returns a tenant and all that belongs to it, in the order in which nothing refers to what was
/// deleted. Tokens are the first, so that their bearers create nothing meanwhile.
async fn things_of(client: &OperatorClient, tenant: &Name) -> Result<Vec<Thing>> {
    // The error for a tenant that does not exist.
    client.tenant(tenant).await?;
    let mut things = Vec::new();
    let tokens = client.tokens().all().await?.into_iter();
    let tokens = tokens.filter(|token| token.tenant.as_ref() == Some(tenant));
    things.extend(tokens.map(|token| Thing::Token(token.name)));
    let flows = client.flows().all().await?.into_iter();
    let flows = flows.filter(|flow| flow.tenant == *tenant);
    things.extend(flows.map(|flow| Thing::Flow(flow.name)));
    let tracks = client.tracks().all().await?.into_iter();
    let tracks = tracks.filter(|track| track.tenant == *tenant);
    things.extend(tracks.map(|track| Thing::Track(track.name)));
    let settings = NodeSettings::all(client).await?.into_iter();
    let settings = settings.filter(|settings| settings.tenant == *tenant);
    things.extend(settings.map(Thing::Settings));
    let nodes = client.nodes().all().await?.into_iter();
    let nodes = nodes.filter(|node| node.tenant == *tenant);
    things.extend(nodes.map(|node| Thing::Node(node.name)));
    things.push(Thing::Tenant(tenant.clone()));
    Ok(things)
}

impl Thing {
    fn kind(&self) -> &'static str {
        match self {
            Thing::Token(_) => "token",
            Thing::Flow(_) => "flow",
            Thing::Track(_) => "track",
            Thing::Settings(_) => NodeSettings::KIND,
            Thing::Node(_) => "node",
            Thing::Tenant(_) => "tenant",
        }
    }

    fn name(&self) -> String {
        match self {
            Thing::Settings(settings) => settings.name(),
            Thing::Token(name)
            | Thing::Flow(name)
            | Thing::Track(name)
            | Thing::Node(name)
            | Thing::Tenant(name) => name.to_string(),
        }
    }

    /// Deletes it, unless another request already has.
    async fn delete(&self, client: &OperatorClient) -> Result<(), Error> {
        let deleted = match self {
            Thing::Token(name) => client.delete_token(name).await,
            Thing::Flow(name) => client.delete_flow(name).await,
            Thing::Track(name) => client.delete_track(name).await,
            Thing::Settings(settings) => client.delete_tunnel_settings(&settings.node).await,
            Thing::Node(name) => client.delete_node(name).await,
            Thing::Tenant(name) => client.delete_tenant(name).await,
        };
        match deleted {
            Err(error) if error.status() == Some(404) => Ok(()),
            deleted => deleted,
        }
    }
}

use super::extract::{Body, Part, Path, Query};
use super::refusal::{BodyRefused, Conflicting, Failed, Refusal, Refused};
use crate::access::{Certified, Operator, Read};
use crate::check;
use crate::controller::{About, Controller};
use crate::record::{TunnelRecord, emit, key, sha256_hex, unix_ms};
use crate::store::{Expect, Write};
use crate::view::{NodeView, View};
use axum::Json;
use axum::extract::State;
use hawser_control::Name;
use hawser_control::answer::Page;
use hawser_control::tunnel::{Admitted, Client, Server, ServerReport, Servers};
use std::net::IpAddr;
use std::sync::Arc;

/// The numbers below are the network's own and the servers'.
const FIRST_INNER: u64 = 2;

/// Say that the node is a server of tunnels, and hear whom it is to let in; again and again
#[utoipa::path(put, path = "/v1/nodes/{node}/tunnel-server", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = ServerReport,
    responses((status = 200, body = Admitted), Refused, BodyRefused))]
pub(super) async fn serve(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
    Body(report): Body<ServerReport>,
) -> Result<Json<Admitted>, Failed> {
    caller.must_be(&node)?;
    check::tunnel_server(&report).map_err(Refusal::meaningless)?;
    if !controller.config.tunnels.servers.contains(&node) {
        controller.metrics.refused("no_tunnel_server");
        let what = format!(
            "{node} may not be a server of tunnels: name it in tunnels.servers of the controller's file"
        );
        return Err(Refusal::forbidden(what).into());
    }
    controller.heard_of(&caller).await?;
    let ServerReport {
        addresses,
        clients,
        most_clients,
        draining,
        known,
    } = report;
    controller
        .heard_tunnel(
            &caller,
            TunnelRecord {
                addresses,
                clients,
                most_clients,
                draining,
            },
        )
        .await?;
    let clients = controller.clients(&caller.tenant);
    let digest = sha256_hex(emit(&clients));
    let is_news = known.is_none_or(|known| known != digest);
    let report_every_ms = controller.config.nodes.report_every_ms;
    Ok(Json(Admitted {
        report_every_ms,
        digest,
        clients: is_news.then_some(clients),
    }))
}

/// Ask where the node may go as a client of tunnels
#[utoipa::path(post, path = "/v1/nodes/{node}/tunnel-client", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])),
    responses((status = 200, body = Servers), Refused, Conflicting))]
pub(super) async fn find(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
) -> Result<Json<Servers>, Failed> {
    caller.must_be(&node)?;
    let addresses = controller.inner_addresses(&caller).await?;
    let view = controller.view();
    let mut servers: Vec<Server> = servers(&view)
        .map(|(_, server)| server)
        .filter(|server| server.tenant == caller.tenant)
        .collect();
    servers.sort_by(|one, other| one.load().total_cmp(&other.load()));
    Ok(Json(Servers {
        ask_every_ms: controller.config.nodes.report_every_ms,
        servers,
        addresses,
    }))
}

/// Servers of tunnels that live, by name
#[utoipa::path(get, path = "/v1/tunnel-servers", tag = "operators", params(Part), security(("token" = [])),
    responses((status = 200, body = Page<Server>), Refused))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Query(part): Query<Part>,
) -> Result<Json<Page<Server>>, Failed> {
    let view = controller.view();
    let rest = view.nodes.range::<str, _>(part.rest());
    let seen = rest
        .filter_map(|(name, node)| server(name, node))
        .filter(|server| operator.sees(&server.tenant));
    Ok(Json(
        part.page(seen.map(|server| (server.name.clone(), server)))?,
    ))
}

fn servers(view: &View) -> impl Iterator<Item = (&Name, Server)> {
    view.nodes
        .iter()
        .filter_map(|(name, node)| Some((name, server(name, node)?)))
}

fn server(name: &Name, node: &NodeView) -> Option<Server> {
    let (record, tunnel) = (&node.record.as_ref()?.value, node.tunnel.as_ref()?);
    Some(Server {
        name: name.clone(),
        tenant: record.tenant.clone(),
        addresses: tunnel.addresses.clone(),
        clients: tunnel.clients,
        most_clients: tunnel.most_clients,
        draining: tunnel.draining,
    })
}

impl Controller {
    /// A server of tunnels said how it is. What is news goes to all controllers.
    async fn heard_tunnel(&self, caller: &Certified, tunnel: TunnelRecord) -> Result<(), Failed> {
        let node = &caller.node.node;
        let known = self
            .view()
            .nodes
            .get(node)
            .and_then(|node| node.tunnel.clone());
        let Some(lease) = self
            .liveness
            .lease(node)
            .filter(|_| known.as_ref() != Some(&tunnel))
        else {
            return Ok(());
        };
        if !self.makes_change(node, &caller.tenant).await? {
            // The next one says it again.
            return Ok(());
        }
        let write = Write::put(key::of(key::TUNNEL, node), emit(&tunnel)).under(lease.id);
        self.write_under_lease(caller, write).await
    }

    /// The nodes of a tenant whose certificates are in force.
    fn clients(&self, tenant: &Name) -> Vec<Client> {
        let (view, now) = (self.view(), unix_ms());
        let client = |(name, node): (&Name, &NodeView)| {
            let record = &node
                .record
                .as_ref()
                .filter(|record| record.value.tenant == *tenant)?
                .value;
            let in_force = record
                .certificates
                .iter()
                .filter(|issued| issued.expires_unix_ms > now);
            let certificates: Vec<_> = in_force.map(|issued| issued.serial.clone()).collect();
            let addresses = view
                .inner_of(name)
                .map_or_else(Vec::new, |number| self.numbered(number));
            (!certificates.is_empty()).then_some(Client {
                name: name.clone(),
                certificates,
                addresses,
            })
        };
        view.nodes.iter().filter_map(client).collect()
    }

    /// The inner addresses of a client, which it gets when it asks for the first time.
    async fn inner_addresses(&self, caller: &Certified) -> Result<Vec<IpAddr>, Failed> {
        let node = &caller.node.node;
        if self.config.tunnels.addresses.is_empty() {
            return Ok(vec![]);
        }
        self.retrying(|| async {
            let free = {
                let view = self.view();
                match view.inner_of(node) {
                    Some(number) => return Ok(self.numbered(number)),
                    None => view.free_inner(FIRST_INNER),
                }
            };
            let addresses = self.numbered(free);
            if addresses.len() < self.config.tunnels.addresses.len() {
                let what = "every address of tunnels.addresses is some node's: delete nodes, or configure larger prefixes";
                return Err(Refusal::conflict(what).into());
            }
            let write = Write::put(key::inner(free), emit(node)).when(Expect::Absent);
            let message = format!("{node} has {} inside tunnels", addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" and "));
            let about = About::tenant(&caller.tenant).node(node);
            // A deletion of the node that has not seen the address is refused.
            let used = Write::put(key::used(key::NODE, node), node.as_str().as_bytes());
            let writes = vec![self.still(&caller.node)?, write, used];
            self.commit(writes, about, "tunnel_addresses_given", message).await?;
            Ok(addresses)
        })
        .await
    }

    /// The addresses of that number. The last one of a prefix of IPv4 is everybody's.
    fn numbered(&self, number: u64) -> Vec<IpAddr> {
        let of = |prefix: &hawser_control::Prefix| {
            let is_last = prefix.is_ipv4() && prefix.address(number + 1).is_none();
            prefix.address(number).filter(|_| !is_last)
        };
        self.config
            .tunnels
            .addresses
            .iter()
            .filter_map(of)
            .collect()
    }
}

use super::extract::{Message, PageQuery, Path, Query};
use crate::access::{Certified, Operator, Read};
use crate::check;
use crate::controller::{About, Controller};
use crate::record::{TunnelRecord, emit, key, sha256_hex};
use crate::refusal::{BodyErrors, CommonErrors, ConflictError, HandlerError, Refusal};
use crate::store::{Expect, Write};
use crate::view::{NodeView, View};
use axum::Json;
use axum::extract::State;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::answer::Page;
use hawser_model::tunnel::{Admitted, Client, ClientReport, Server, ServerReport, Servers};
use std::net::IpAddr;
use std::sync::Arc;

/// The first offset of clients' inner addresses. Smaller ones are the network address and the
/// servers'.
const FIRST_INNER: u64 = 2;

/// Report as a tunnel server, and get the clients that the server may accept; sent repeatedly
#[utoipa::path(operation_id = "report_tunnel_server", put, path = "/v1/nodes/{node}/tunnel-server", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = ServerReport,
    responses((status = 200, body = Admitted), CommonErrors, BodyErrors))]
pub(super) async fn report_server(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
    Message(report): Message<ServerReport>,
) -> Result<Json<Admitted>, HandlerError> {
    caller.must_be(&node)?;
    check::tunnel_server(&report).map_err(Refusal::meaningless)?;
    controller.check_server(&node)?;
    controller.note_alive(&caller).await?;
    let tunnel = TunnelRecord {
        addresses: report.addresses,
        tcp_port: report.tcp_port,
        clients: report.clients,
        max_clients: report.max_clients,
        draining: report.draining,
    };
    controller.on_tunnel_report(&caller, tunnel).await?;
    Ok(Json(controller.admitted(&caller.tenant, report.known)))
}

/// Get the tunnel servers that the node may use as a client, and its settings
///
/// The node says what it has done with the settings before.
#[utoipa::path(operation_id = "list_tunnel_servers_of_node", post, path = "/v1/nodes/{node}/tunnel-client", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = ClientReport,
    responses((status = 200, body = Servers), CommonErrors, BodyErrors, ConflictError))]
pub(super) async fn list_servers(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
    Message(report): Message<ClientReport>,
) -> Result<Json<Servers>, HandlerError> {
    caller.must_be(&node)?;
    check::tunnel_client(&report).map_err(Refusal::meaningless)?;
    let addresses = controller.inner_addresses(&caller).await?;
    controller.note_client(&caller, report).await;
    let settings = controller.given_settings(&caller);
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
        settings,
    }))
}

/// List the tunnel servers that are alive, ordered by name
#[utoipa::path(operation_id = "list_tunnel_servers", get, path = "/v1/tunnel-servers", tag = "operators", params(PageQuery), security(("token" = [])),
    responses((status = 200, body = Page<Server>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<Server>>, HandlerError> {
    let view = controller.view();
    let rest = view.nodes.range::<str, _>(query.range());
    let seen = rest
        .filter_map(|(name, node)| server(name, node))
        .filter(|server| operator.sees(&server.tenant));
    Ok(Json(
        query.page(seen.map(|server| (server.name.clone(), server)))?,
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
        tcp_port: tunnel.tcp_port,
        clients: tunnel.clients,
        max_clients: tunnel.max_clients,
        draining: tunnel.draining,
    })
}

impl Controller {
    /// Refuses a node that may not be a tunnel server.
    fn check_server(&self, node: &Name) -> Result<(), Refusal> {
        if self.config.tunnels.servers.contains(node) {
            return Ok(());
        }
        self.metrics.refused("no_tunnel_server");
        Err(Refusal::forbidden(format!(
            "{node} may not be a tunnel server: add it to tunnels.servers in the controller's configuration"
        )))
    }

    /// Returns the response to a tunnel server. `known` is the digest of the list of clients that
    /// it has.
    fn admitted(&self, tenant: &Name, known: Option<String>) -> Admitted {
        let clients = self.clients(tenant);
        let digest = sha256_hex(emit(&clients));
        let has_changed = known.is_none_or(|known| known != digest);
        Admitted {
            report_every_ms: self.config.nodes.report_every_ms,
            digest,
            clients: has_changed.then_some(clients),
        }
    }

    /// Handles the report of a tunnel server. Changes are written to the store for all controllers.
    async fn on_tunnel_report(
        &self,
        caller: &Certified,
        tunnel: TunnelRecord,
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let is_known = {
            let view = self.view();
            let known = view.nodes.get(node).and_then(|node| node.tunnel.as_ref());
            known == Some(&tunnel)
        };
        let Some(lease) = self.liveness.lease(node).filter(|_| !is_known) else {
            return Ok(());
        };
        if !self.admits_change(caller).await? {
            // The next report repeats it.
            return Ok(());
        }
        let write = Write::put(key::of(key::TUNNEL, node), emit(&tunnel)).under(lease);
        self.write_under_lease(caller, write).await
    }

    /// Returns the nodes of a tenant that have valid certificates.
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
                .map_or_else(Vec::new, |number| self.addresses_at(number));
            (!certificates.is_empty()).then_some(Client {
                name: name.clone(),
                certificates,
                addresses,
            })
        };
        view.nodes.iter().filter_map(client).collect()
    }

    /// Returns the inner addresses of a client, which are assigned at its first request.
    async fn inner_addresses(&self, caller: &Certified) -> Result<Vec<IpAddr>, HandlerError> {
        if self.config.tunnels.addresses.is_empty() {
            return Ok(vec![]);
        }
        self.retrying(|| self.try_inner_addresses(caller)).await
    }

    async fn try_inner_addresses(&self, caller: &Certified) -> Result<Vec<IpAddr>, HandlerError> {
        let node = &caller.node.node;
        let free = {
            let view = self.view();
            match view.inner_of(node) {
                Some(number) => return Ok(self.addresses_at(number)),
                None => view.free_inner(FIRST_INNER),
            }
        };
        let addresses = self.addresses_at(free);
        if addresses.len() < self.config.tunnels.addresses.len() {
            let what = "all addresses in tunnels.addresses are assigned: delete nodes, or configure larger prefixes";
            return Err(Refusal::conflict(what).into());
        }
        self.assign_inner(caller, free, &addresses).await?;
        Ok(addresses)
    }

    /// Stores that a client has the inner addresses with that offset.
    async fn assign_inner(
        &self,
        caller: &Certified,
        number: u64,
        addresses: &[IpAddr],
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let texts: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
        let message = format!("{node} got the inner addresses {}", texts.join(" and "));
        let about = About::tenant(&caller.tenant).node(node);
        let write = Write::put(key::inner(number), emit(node)).when(Expect::Absent);
        // The `used` key makes the store reject a concurrent deletion of the node that does not
        // include the address.
        let used = Write::put(key::used(key::NODE, node), node.as_str().as_bytes());
        let writes = vec![self.certificate_check(&caller.node)?, write, used];
        self.commit(
            &caller.checked,
            writes,
            about,
            "tunnel_addresses_given",
            message,
        )
        .await?;
        Ok(())
    }

    /// Returns the addresses with that offset. The last address of an IPv4 prefix is the broadcast
    /// address.
    fn addresses_at(&self, number: u64) -> Vec<IpAddr> {
        let of = |prefix: &hawser_model::Prefix| {
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

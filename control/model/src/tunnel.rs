//! Messages between the controller and the clients and servers of coded tunnels. A node may be a
//! client or a server; both are identified by their certificates. A client can only use servers of
//! its own tenant. [`settings`](TunnelSettings) are what operators set for clients.

mod settings;

pub use settings::{GivenSettings, SettingsState, TunnelClient, TunnelSettings, UplinkSettings};

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// A tunnel server's report: `PUT /v1/nodes/{node}/tunnel-server`, sent repeatedly. The server is
/// listed for as long as it reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerReport {
    /// The addresses where clients reach the server, `address:port`, at most one per address
    /// family.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<SocketAddr>,
    /// The TCP port at the same addresses, for clients in networks that block UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_port: Option<u16>,
    /// The number of connected clients.
    pub clients: u32,
    /// The maximum number of clients.
    pub max_clients: u32,
    /// Whether the server is about to exit and accepts no more clients.
    pub draining: bool,
    /// The digest of the [`Admitted`] clients that the server knows.
    #[serde(default)]
    pub known: Option<String>,
}

/// The clients that a server may accept, the response to [`ServerReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Admitted {
    /// The interval between the server's reports, milliseconds.
    pub report_every_ms: u32,
    /// The digest of `clients`. It changes when they do.
    pub digest: String,
    /// All clients; `null` if the server knows them already.
    pub clients: Option<Vec<Client>>,
}

/// A node with a valid certificate, as a client of tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Client {
    /// The name of the node.
    pub name: Name,
    /// The serial numbers of the node's certificates, hexadecimal.
    pub certificates: Vec<String>,
    /// The client's fixed inner addresses, at most one per address family. If empty, the server
    /// chooses.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpAddr>,
}

/// The servers that a client may use, the response to `POST /v1/nodes/{node}/tunnel-client`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Servers {
    /// The interval between the client's requests, milliseconds.
    pub ask_every_ms: u32,
    /// The servers that are alive, least loaded first.
    pub servers: Vec<Server>,
    /// The client's inner addresses at all of these servers. If empty, the servers choose.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpAddr>,
    /// The settings for the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<GivenSettings>,
}

/// The report of a tunnel client on its settings, which is the body of `POST
/// /v1/nodes/{node}/tunnel-client`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClientReport {
    /// Whether the client's file lets the controller change settings.
    pub accepts_settings: bool,
    /// The revision of the [`GivenSettings`] in force; `null` if only the client's file is.
    #[serde(default)]
    pub applied: Option<u64>,
    /// The settings given last, if the client cannot apply them.
    #[serde(default)]
    pub refused: Option<RefusedSettings>,
}

/// Settings that a tunnel client cannot apply. The ones before stay in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedSettings {
    /// Their revision.
    pub revision: u64,
    /// The reason, for people.
    pub reason: String,
}

impl RefusedSettings {
    /// The maximum size of a reason, bytes.
    pub const MAX_REASON_BYTES: usize = 500;
}

/// A tunnel server that is alive, as listed by `GET /v1/tunnel-servers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Server {
    /// The name of the node, as in its certificate.
    pub name: Name,
    /// The tenant that the server belongs to.
    pub tenant: Name,
    /// The addresses where clients reach the server, `address:port`.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<SocketAddr>,
    /// The TCP port at the same addresses, for clients in networks that block UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_port: Option<u16>,
    /// The number of connected clients.
    pub clients: u32,
    /// The maximum number of clients.
    pub max_clients: u32,
    /// Whether the server is about to exit and accepts no more clients.
    pub draining: bool,
}

impl Server {
    /// Returns whether the server accepts another client.
    pub fn has_room(&self) -> bool {
        !self.draining && self.clients < self.max_clients
    }

    /// Returns the number of clients as a fraction of the maximum.
    pub fn load(&self) -> f64 {
        if self.max_clients == 0 {
            1.0
        } else {
            f64::from(self.clients) / f64::from(self.max_clients)
        }
    }
}

//! What the ends of coded tunnels ask of the controller. A node may be a client, or a server; both are known by their
//! certificates. Servers and clients of one tenant belong together.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// What a server says of itself: `PUT /v1/nodes/{node}/tunnel-server`, again and again. It is among the servers for as
/// long as it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// Where clients reach it, `address:port`, at most one of each family.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<SocketAddr>,
    /// Clients that it has.
    pub clients: u32,
    /// Clients that it can have.
    pub most_clients: u32,
    /// Whether it is about to end, and takes no more of them.
    pub draining: bool,
    /// The digest of the [`Admitted`] that it has.
    #[serde(default)]
    pub known: Option<String>,
}

/// Whom a server is to let in, the answer to [`ServerReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Admitted {
    /// How often the server says how it is, milliseconds.
    pub report_every_ms: u32,
    /// Of `clients`: another one when they change.
    pub digest: String,
    /// All of them; none when the server knows them already.
    pub clients: Option<Vec<Client>>,
}

/// A node whose certificate is in force, as a client of tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Client {
    /// Its name.
    pub name: Name,
    /// The serial numbers of its certificates, hexadecimal.
    pub certificates: Vec<String>,
    /// The inner addresses that it always has, at most one of each family; none: the server chooses.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpAddr>,
}

/// Where a client may go, the answer to `POST /v1/nodes/{node}/tunnel-client`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Servers {
    /// How often the client asks again, milliseconds.
    pub ask_every_ms: u32,
    /// Servers that live, those with the least load first.
    pub servers: Vec<Server>,
    /// The inner addresses that the client has at all of them; none: the servers choose.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpAddr>,
}

/// A server that lives, as `GET /v1/tunnel-servers` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Server {
    /// The node, and the name in its certificate.
    pub name: Name,
    /// Whose it is.
    pub tenant: Name,
    /// Where clients reach it, `address:port`.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<SocketAddr>,
    /// Clients that it has.
    pub clients: u32,
    /// Clients that it can have.
    pub most_clients: u32,
    /// Whether it is about to end.
    pub draining: bool,
}

impl Server {
    /// Whether it takes another client.
    pub fn has_room(&self) -> bool {
        !self.draining && self.clients < self.most_clients
    }

    /// The share of its room that is taken.
    pub fn load(&self) -> f64 {
        if self.most_clients == 0 {
            1.0
        } else {
            f64::from(self.clients) / f64::from(self.most_clients)
        }
    }
}

//! Media over QUIC: the tracks of a broadcast for browsers (WebTransport) and other implementations (QUIC),
//! beside a relay's own protocol. `docs/design/moq.md` describes the tracks, groups and objects.
//!
//! A [`Server`] has the sockets and the sessions, in a thread of its own; through its [`Entrance`], the web server of a
//! program brings browsers without WebTransport to it. An [`Egress`] is given the objects
//! as they become whole; groups that a subscriber has not received when newer ones begin are dropped for it. An
//! [`Ingest`] receives a broadcast from another server, or from a publisher that connects.
//!
//! ```
//! use hawser_moq::{Config, Server};
//!
//! let config = Config::new("127.0.0.1:0".parse()?, "stage");
//! let (server, egress) = Server::open(config)?;
//! println!("moqt://{}, certificate {}", server.local_address(), server.fingerprint());
//! assert_eq!(egress.stats().objects, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admission;
mod authorisation;
mod catalog;
mod certificate;
mod egress;
mod entrance;
mod ingest;
mod places;
mod server;
mod transport;
mod trust;

pub use admission::ServerStats;
pub use authorisation::{InvalidToken, Token};
pub use catalog::{Catalog, CatalogError, CatalogTrack, Contents};
pub use egress::{Egress, EgressStats};
pub use entrance::{Entrance, SocketClient};
pub use ingest::{Ingest, IngestConfig, IngestSource, IngestStats, InvalidUrl, SourceUrl};
pub use server::{Config, OpenError, Server, versions};
pub use transport::{RecvStream, SendStream, Transport, TransportError};
pub use trust::Trust;

//! The client of the controller's REST interface, for agents, operators and simulated nodes.
//!
//! A [`NodeClient`] acts for one node, identified by its certificate; an [`OperatorClient`] for the
//! bearer of a token. Both trust only one authority, and switch to the next controller if one does
//! not answer.
//!
//! ```no_run
//! use hawser_client::{NodeClient, NodeMessage, enrol_in};
//! use std::path::Path;
//!
//! # async fn example(token: &str) -> Result<(), hawser_client::Error> {
//! let controllers = ["https://192.0.2.1:14750".parse()?, "https://192.0.2.2:14750".parse()?];
//! let folder = Path::new("/var/lib/hawser/agent");
//! let node = "edge-1".parse().expect("a name");
//! let identity = enrol_in(folder, &node, &controllers, token).await?;
//!
//! let client = NodeClient::new(&controllers, &identity)?;
//! let mut stream = client.stream().await?;
//! while let Some(message) = stream.next().await? {
//!     if let NodeMessage::Policy(policy) = message {
//!         println!("{} takes the paths {:#010b} now", policy.flow, policy.code.0);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
mod any_bytes;
mod backoff;
mod error;
mod identity;
mod node;
mod operator;
mod renewing;
mod stream;
mod tls;
mod transport;
mod words;

pub use backoff::{Backoff, pause_within};
pub use error::Error;
pub use identity::Identity;
pub use node::{NodeClient, NodeMessage, NodeStream, enrol, enrol_in};
pub use operator::{EventStream, OperatorClient, Pages};
pub use renewing::RenewingClient;
pub use transport::{Controller, Tag, Tagged};

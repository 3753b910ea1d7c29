//! The controller's interface, called directly and over TLS on loopback.

mod audit;
mod decisions;
mod liveness;
mod maintenance;
mod memory;
mod nodes;
mod operators;
mod preconditions;
mod reload;
mod restart;
mod rig;
mod stop;
mod tls;
mod tokens;
mod tracks;
mod tunnels;
mod versions;

//! The controller's interface, called directly and over TLS on loopback.

mod audit;
mod decisions;
mod lists;
mod liveness;
mod memory;
mod nodes;
mod openapi;
mod operators;
mod preconditions;
mod reload;
mod restart;
mod rig;
mod status;
mod stop;
mod tls;
mod topology;
mod tracks;
mod tunnels;

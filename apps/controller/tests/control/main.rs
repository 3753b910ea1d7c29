//! The controller's interface, called directly and over TLS on loopback.

mod audit;
mod decisions;
mod keys;
mod lists;
mod liveness;
mod maintenance;
mod memory;
mod missed;
mod nodes;
mod openapi;
mod operators;
mod plain;
mod preconditions;
mod reload;
mod restart;
mod rig;
mod slow_store;
mod status;
mod stop;
mod store_with_delay;
mod tls;
mod tokens;
mod topology;
mod tracks;
mod tunnels;
mod versions;

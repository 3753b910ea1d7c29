//! The store in a real etcd: the same as every store, and what happens when etcd or a leader dies.

mod cluster;
mod conformance;
mod faults;
mod quota;
mod server;
#[path = "../store_suite/mod.rs"]
mod store_suite;

//! The store in a real etcd: the tests of every store, and failures of etcd or of a leader.

mod cluster;
mod conformance;
mod faults;
mod quota;
mod restore;
mod server;
#[path = "../store_suite/mod.rs"]
mod store_suite;

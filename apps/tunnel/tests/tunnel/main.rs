//! A client and two servers in network namespaces, with a router between and a host behind.

mod certificates;
mod closed;
mod controller;
mod faults;
mod kill_switch;
mod process;
mod protocol;
mod refusals;
mod rig;
mod traffic;
mod uplinks;

//! A client and two servers in network namespaces, with a router between them and a host behind the
//! servers.

mod certificates;
mod closed;
mod controller;
mod delays;
mod dns;
mod ecn;
mod faults;
mod kill_switch;
mod modems;
mod mss;
mod process;
mod protocol;
mod refusals;
mod revocation;
mod rig;
mod tcp;
mod traffic;
mod uplinks;

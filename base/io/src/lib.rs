//! Sockets, TUN devices, interfaces and routes, files of
//! configuration and state, processes and programs, the time of day, limits of rates, of open files and of
//! handshakes, and what has to stay as it was set in the kernel.

#![allow(unsafe_code, reason = "system calls that no safe wrapper covers")]

pub mod boot;
pub mod clock;
pub mod config;
mod departures;
pub mod descriptors;
pub mod failures;
pub mod file;
pub mod handshakes;
pub mod interface;
pub mod json_file;
pub mod kept;
pub mod key_file;
pub mod netlink;
pub mod peer;
pub mod process;
pub mod program;
pub mod rate_limit;
pub mod reporter;
pub mod scheduling;
pub mod segmenter;
pub mod sockopt;
pub mod sources;
pub mod sysctl;
pub mod tap;
pub mod tun;
pub mod udp;
pub mod xdp;

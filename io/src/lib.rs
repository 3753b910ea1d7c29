//! Sockets, TUN devices, network namespaces, packet rings and configuration files.

#![allow(unsafe_code, reason = "system calls that no safe wrapper covers")]

pub mod config;
pub mod file;
pub mod interface;
pub mod netns;
pub mod process;
pub mod rate_limit;
pub mod ring;
pub mod segmenter;
pub mod sockopt;
pub mod stamped;
pub mod tap;
pub mod tun;

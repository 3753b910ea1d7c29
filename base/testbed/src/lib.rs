//! Networks on one machine for tests and experiments: nodes in network namespaces, traffic whose losses are known, packet
//! rings, and the programs under test.
//!
//! The programs are started as processes. Nothing here depends on their code, so that their own
//! tests can use it.

pub mod edges;
pub mod logs;
#[allow(unsafe_code, reason = "system calls that no safe wrapper covers")]
pub mod netns;
#[allow(unsafe_code, reason = "system calls that no safe wrapper covers")]
pub mod process;
pub mod program;
#[allow(unsafe_code, reason = "system calls that no safe wrapper covers")]
pub mod ring;
pub mod topology;
pub mod traffic;

//! Benchmarks of the relay, and measurements of relays of any kind. `hawser lab` runs them.

mod delay;
mod relay;
mod rewrite;
mod stream;
mod syscalls;

pub use delay::{DelayProbe, Delays, Subscribers};
pub use hawser_kernel::bench::BenchError;
pub use relay::{RelayBench, TimedRelay};
pub use rewrite::{RewriteClient, RewriteRelay};
pub use stream::StreamProbe;
pub use syscalls::SyscallCounter;

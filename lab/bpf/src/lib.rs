//! eBPF programs that measure those of Hawser, and relays of any kind. `hawser lab` runs them.
#![allow(
    unsafe_code,
    reason = "maps are memory shared with the kernel and links are raw kernel objects"
)]

mod delay;
mod error;
mod relay;
mod replication;
mod rewrite;
mod stream;
mod syscalls;

pub use delay::{DelayProbe, Delays, Subscribers};
pub use error::BenchError;
pub use relay::RelayBench;
pub use replication::{Accepting, DedupBench, Egress, LocalBench, MAX_PREPARED, TransitBench};
pub use rewrite::{RewriteClient, RewriteRelay};
pub use stream::StreamProbe;
pub use syscalls::SyscallCounter;

hawser_kernel::skeletons!(
    bench_dedup,
    bench_delay,
    bench_deliver,
    bench_replicate_tc,
    bench_replicate_xdp,
    bench_rewrite,
    bench_stream,
    bench_syscalls,
);

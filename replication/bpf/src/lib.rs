//! The eBPF programs of edges and their loader: load, attach, typed map handles. No policy.
//!
//! [`Sender`] replicates the flows of an ingress edge and applies in-band signals, [`Receiver`]
//! deduplicates the copies at the egress edge, [`Watcher`] records the viewer's requests there, and
//! [`Fallback`] routes the packets that are not replicated.
//! The programs are in `src/c`; the formats are specified in `docs/design/wire.md`.
#![allow(
    unsafe_code,
    reason = "maps are memory shared with the kernel and links are raw kernel objects"
)]

mod arrivals;
mod attachments;
mod device_drops;
mod fallback;
mod hook;
mod judge;
mod keys;
mod passing;
mod path_errors;
mod path_sets;
mod pins;
mod policy;
mod reason;
mod receiver;
mod selection;
mod selector;
mod sender;
mod signals;
mod watcher;

pub use arrivals::{Arrival, Arrivals};
pub use fallback::{Fallback, FallbackStats};
pub use hawser_dedup::Verdict;
pub use hawser_kernel::link::{AttachError, Link, XdpMode, xdp_mode};
pub use hawser_kernel::load::LoadError;
pub use hawser_kernel::program::{RunError, TestRun};
pub use hawser_kernel::table::TableError;
pub use hook::ReceiveHook;
pub use judge::TaggedWindows;
pub use passing::Passing;
pub use path_errors::PathError;
pub use policy::{PolicyError, SendPolicy};
pub use reason::{REASONS, Reason};
pub use receiver::{Receiver, ReceiverOptions, RxStats, SeenEcho};
pub use selector::{MAX_RULES, NotAPrefix, Ports, Prefix, Rule};
pub use sender::{
    Endpoint, Loop, MANAGEMENT_PORTS, Missed, SendFlow, SendPath, Sender, SenderOptions, TxStats,
};
pub use signals::{SignalEvent, SignalEvents, SignalOptions, SignalOutcome, SignalsError};
pub use watcher::{Request, WatchStats, Watcher};

hawser_kernel::skeletons!(
    dedup,
    dedup_link,
    device_drops,
    fallback,
    judge,
    pass,
    path_errors,
    replicate_xdp,
    replicate_tc,
    signal,
    watch,
);

//! Media objects over UDP: sealed end to end, sent while they are of use, reassembled and reported.
//!
//! An object is one encoded layer of one frame of one track. A [`Packetiser`] makes it into sealed
//! packets whose bytes are the same for every viewer. A [`Sender`] is the in-flight buffer of one
//! viewer: it admits objects, chooses the next packet, sends lost ones again while the deadline
//! allows, and gives congestion control what the viewer reported. A [`Flow`] is a sender with rate
//! control and pacer. A [`Receiver`] verifies, opens,
//! reassembles and makes the reports. [`Host`] and [`Viewer`] open the session between them. Nothing
//! here has a clock, a socket or a source of randomness. `docs/design/media.md` draws the bytes and
//! gives the reasons.
//!
//! ```
//! use hawser_objects::{
//!     ObjectInfo, Packetiser, PacketiserConfig, Sender, SenderConfig, TrackSecret,
//! };
//! use hawser_units::{ByteSize, Instant};
//! use hawser_packets::media::{Flags, ObjectId};
//! use std::time::Duration;
//!
//! let secret = TrackSecret::new([1; 32]); // from the controller or a file
//! let incarnation = [2; 16]; // random at each start
//! let hop = secret.access().hop(&[3; 16], 0);
//! let mut packetiser = Packetiser::new(PacketiserConfig::new(7, incarnation), secret, hop);
//! let mut sender = Sender::new(SenderConfig::new(ByteSize(500_000)));
//!
//! let now = Instant::ZERO;
//! let info = ObjectInfo {
//!     id: ObjectId { alias: 7, group: 0, object: 0, layer: 0 },
//!     priority: 0,
//!     deadline: now + Duration::from_millis(100),
//!     flags: Flags::default(),
//! };
//! let frame = packetiser.packetise(info, &[0; 3000])?;
//! sender.offer(now, &frame)?;
//! let mut sent = 0;
//! while let Some(transmit) = sender.poll_transmit(now) {
//!     assert!(transmit.datagram.len() <= 1200); // paced by the caller
//!     sent += 1;
//! }
//! assert_eq!(sent, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrivals;
#[cfg(any(test, feature = "fuzzing"))]
pub mod checks;
mod clock;
mod encodings;
mod epochs;
mod flights;
mod flow;
mod frames;
mod gaps;
mod keys;
mod object;
mod packetiser;
mod publication;
mod reassembly;
mod receiver;
mod refusal;
mod reordering;
mod reports;
mod rtt;
mod seen;
mod sender;
mod session;
mod track;

pub use clock::{Clock, ClockError, Relation};
pub use encodings::Encodings;
pub use flow::{Departure, Flow, FlowConfig, IPV4_UDP, IPV6_UDP};
pub use frames::{FrameAssembler, FrameConfig, FrameId, FrameStats, ReceivedFrame};
pub use keys::{AccessSecret, PACKETS_PER_KEY, Seed, TrackSecret};
pub use object::{Begun, LayerContent, ObjectInfo, SealedObject, SealedPacket};
pub use packetiser::{OpenObject, PacketiseError, Packetiser, PacketiserConfig};
pub use publication::{
    EncodedLayer, EncodedSlice, MakeControl, Outgoing, Publication, PublicationConfig,
    PublicationEvent, Published, ViewerStatus,
};
pub use receiver::{ReceivedObject, Receiver, ReceiverConfig, ReceiverEvent};
pub use refusal::{Refusal, Refusals};
pub use reports::ReportConfig;
pub use rtt::RttEstimate;
pub use sender::{
    Acknowledged, AdmitError, DropReason, FeedbackError, Lost, Outcome, Rule, Sender, SenderConfig,
    SenderEvent, SenderStats, Transmit,
};
pub use session::{
    EndReason, Host, HostConfig, HostError, HostEvent, HostStats, OpenError, RelayedPacket,
    SessionTimes, Upstream, UpstreamConfig, UpstreamEnd, UpstreamEvent, Viewer, ViewerConfig,
    ViewerError, ViewerEvent, ViewerStats,
};
pub use track::TrackTiming;

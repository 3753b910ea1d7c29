//! The parts that experiments vary: the scheduler and the recovery of other schemes, and the constants of this
//! one.

use crate::Config;
use crate::frame::PacketHeader;
pub use crate::path::{Path, Paths};
pub use crate::recovery::RecoveryMethod;
pub use crate::sent_packets::{Fate, SentPacket, SentPackets};
use crate::sent_transmissions::LossRule;
pub use crate::sent_transmissions::QUIC_OVERHEAD;
use earliest_delivery::EarliestDelivery;
use hawser_units::{Instant, PathId, PathSet};
use std::fmt;
use std::time::Duration;

mod earliest_delivery;
#[cfg(any(test, feature = "scene"))]
pub mod scene;

/// The scheduler, the recovery and the constants of a session. The default is XNC with our additions:
/// packets take the path that delivers earliest, and lost packets are recovered by random linear network
/// coding over the best paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// The scheduler, which selects the path of each packet.
    pub scheduler: NewScheduler,
    /// The recovery of lost packets.
    pub recovery: RecoveryMethod,
    /// The number of packets before the newest that a coded packet of the scheduler may cover; 0 for a
    /// scheduler that sends none.
    pub lookback: usize,
    /// Whether the losses of a path while it is silent do not count as its loss afterwards.
    pub forgets_silence: bool,
    /// The rule by which packets count as lost.
    pub loss_detection: LossDetection,
    /// The time after which an unacknowledged packet counts as lost. If the path's probe timeout is
    /// shorter, it is used instead (Ni, section 4.4.1). QUIC's loss detection ignores this.
    pub loss_threshold: Duration,
    /// Replaces `loss_threshold` while packets wait for window. A retransmission then takes the
    /// place of a new packet, and most packets that are this late still arrive, because paths
    /// pause.
    pub loss_threshold_waiting: Duration,
    /// If the application marks ends of frames, a packet whose acknowledgement is later than
    /// expected by this time counts as lost, provided that its frame lacks at most
    /// `straggler_share` of its packets, or that its path does not deliver and no packets wait. Only
    /// with [`LossDetection::Early`]; not at all with [`Duration::MAX`].
    pub straggler_delay: Duration,
    /// The share of a frame's packets, 0 to 1. A frame that lacks more is not worth an early
    /// recovery, unless there is room for all of it.
    pub straggler_share: f64,
    /// The maximum number of packets in an encoding range, 1 to 63 (r in Ni, section 4.4.2).
    pub range_packets: usize,
    /// The maximum time from the first packet of an encoding range to its last (t in Ni, section
    /// 4.4.2).
    pub range_span: Duration,
    /// Whether frames of a flow whose ends of frames are marked are dropped as a whole, after
    /// `max_frame_queue_delay`. Otherwise, single packets are dropped after `max_queue_delay`.
    pub drop_frames: bool,
    /// The maximum time that a frame waits of which nothing was sent. It is dropped afterwards, so
    /// that the frames that can be sent are not late.
    pub max_frame_queue_delay: Duration,
    /// The time added to `max_frame_queue_delay` for each frame that was dropped since the last one
    /// was sent, up to `max_queue_delay`. With window for half of the frames, every other frame is
    /// then sent, and the video does not freeze.
    pub frame_queue_delay_step: Duration,
    /// The share of a path's congestion window that may wait in its connection, which paces it.
    /// With XNC it is just enough to keep the connection busy, because a packet that waits in the
    /// sender can still take another path. At least 10 kB, at most 500 kB.
    pub connection_share: f64,
    /// The maximum queue on a path: the path gets no more data than it drains within its minimum
    /// round-trip time plus this time, at its estimated rate. [`Duration::MAX`]: as much as its
    /// congestion window allows.
    pub queue_target: Duration,
    /// Replaces `queue_target` for packets of other flows while there is a flow with marked ends of
    /// frames. The difference is reserved for the next frame.
    pub queue_target_shared: Duration,
    /// The target delay of CoDel (RFC 8289) for flows without marked ends of frames. If packets of
    /// a flow wait for longer than this during `codel_interval`, packets are dropped, or marked if
    /// the sender supports ECN, at increasing frequency until the queue is shorter.
    pub codel_target: Duration,
    /// The interval of CoDel: the time that senders take to react, a round-trip time that is rarely
    /// exceeded. The default is 150 ms, with a tenth of it as the target. With the 100 ms of RFC
    /// 8289, a single CUBIC flow uses less of the capacity that a video leaves.
    pub codel_interval: Duration,
    /// The delay of acknowledgements, in excess of the minimum, above which a path has a queue and
    /// gets no new packets.
    pub max_path_backlog: Duration,
    /// The age, in excess of the minimum round-trip time, of the latest acknowledged transmission
    /// of a path. A path that exceeds it may be down, and is the last choice for recovery packets.
    pub delivered_within: Duration,
    /// Whether a shot is sent as a whole: for contiguous lost packets, once the windows of all paths
    /// together allow all of it, and over every path as far as its window and `path_share` allow
    /// (Ni, section 4.5.2). Otherwise, a shot covers its range, begins with the first open window,
    /// and is spread over the paths so that it survives the failure of any one of them, unless all
    /// that it recovers are stragglers.
    pub whole_shots: bool,
    /// The maximum share of the coded packets for one path (rho in Ni, section 4.5.2). Only for
    /// whole shots.
    pub path_share: f64,
    /// The maximum number of shots for the same packet, one in the paper. The next shot follows as
    /// soon as acknowledgements show that the previous one cannot suffice any more.
    pub shots: u32,
}

impl Default for Experiment {
    fn default() -> Self {
        Experiment {
            scheduler: NewScheduler {
                name: "earliest-delivery",
                new: || Box::new(EarliestDelivery),
            },
            recovery: RecoveryMethod::OneShot { coded: true },
            lookback: 0,
            forgets_silence: true,
            loss_detection: LossDetection::Early,
            loss_threshold: Duration::from_millis(100),
            loss_threshold_waiting: Duration::from_millis(200),
            straggler_delay: Duration::from_millis(30),
            straggler_share: 0.2,
            range_packets: 63,
            range_span: Duration::from_millis(60),
            drop_frames: true,
            max_frame_queue_delay: Duration::from_millis(60),
            frame_queue_delay_step: Duration::from_millis(40),
            connection_share: 0.3,
            queue_target: Duration::from_millis(40),
            queue_target_shared: Duration::from_millis(20),
            codel_target: Duration::from_millis(15),
            codel_interval: Duration::from_millis(150),
            max_path_backlog: Duration::from_millis(100),
            delivered_within: Duration::from_millis(60),
            whole_shots: false,
            path_share: 1.1,
            shots: 3,
        }
    }
}

/// The rule by which a packet counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossDetection {
    /// After the loss threshold or the probe timeout, whichever is shorter, or when later
    /// transmissions of its path have arrived. Stragglers count as lost even sooner.
    Early,
    /// After the loss threshold or the probe timeout, whichever is shorter (Ni, section 4.4.1).
    Timeout,
    /// QUIC's: when later transmissions have arrived (RFC 9002).
    Quic,
}

/// The way to create a scheduler. Those of the same name are equal.
#[derive(Clone, Copy)]
pub struct NewScheduler {
    /// The name.
    pub name: &'static str,
    /// Creates the scheduler of a session.
    pub new: fn() -> Box<dyn Scheduler>,
}

impl fmt::Debug for NewScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for NewScheduler {
    fn eq(&self, other: &NewScheduler) -> bool {
        self.name == other.name
    }
}

/// The result of path selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathChoice {
    /// On no path yet.
    Wait,
    /// On one path.
    On(PathId),
    /// On each of these paths.
    OnAll(PathSet),
}

impl From<Option<PathId>> for PathChoice {
    fn from(path: Option<PathId>) -> PathChoice {
        path.map_or(PathChoice::Wait, PathChoice::On)
    }
}

/// A packet that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The size of its frame in bytes.
    pub size: usize,
    /// The hash that identifies its flow.
    pub flow_hash: u64,
    /// The maximum time that a path may take to drain the queue to which the packet adds.
    pub queue: Duration,
    /// Whether its flow may always have data to send.
    pub is_bulk: bool,
}

/// A packet that is sent in addition to new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// A copy of a packet in flight, over another path.
    Copy {
        /// The number of the packet.
        id: u64,
        /// The other path.
        path: PathId,
    },
    /// A coded packet over `count` packets, at least two.
    Coded {
        /// The number of the first packet.
        start: u64,
        /// The number of packets.
        count: u8,
        /// The path of the coded packet.
        path: PathId,
    },
}

impl Extra {
    /// Returns a coded packet over `count` packets from `start` on; of one packet, a copy. A frame
    /// with a count of 1 is an uncoded packet.
    pub fn coded(start: u64, count: u8, path: PathId) -> Extra {
        match count {
            ..=1 => Extra::Copy { id: start, path },
            _ => Extra::Coded { start, count, path },
        }
    }
}

/// The state on which a scheduler decides.
#[derive(Debug)]
pub struct View<'a> {
    /// The time.
    pub now: Instant,
    /// The parameters of the session.
    pub config: &'a Config,
    /// The paths.
    pub paths: &'a Paths,
    /// The packets that were sent and may have to be recovered.
    pub sent_packets: &'a SentPackets,
    /// The number of packets that were not sent yet.
    pub waiting: usize,
}

/// Selects the paths of packets.
pub trait Scheduler: fmt::Debug + Send {
    /// Selects the path of a packet.
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice;

    /// Returns a packet to send before the next new packet.
    fn extra(&mut self, _view: &View<'_>) -> Option<Extra> {
        None
    }
}

/// Returns the path with the lowest smoothed round-trip time, of those that have not failed if
/// there are any.
pub fn fastest<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<&'a Path> {
    paths.min_by_key(|path| (path.is_potentially_failed(), path.state.rtt.smoothed))
}

/// Returns the size of the frame of an uncoded packet, in bytes.
pub fn frame_size(bytes: &[u8]) -> usize {
    PacketHeader::LEN + bytes.len()
}

impl Config {
    /// Returns whether packets may be coded, so that receivers have to keep them for decoding.
    pub(crate) fn is_coded(&self) -> bool {
        let Experiment {
            lookback, recovery, ..
        } = self.experiment;
        lookback > 0 || recovery == RecoveryMethod::OneShot { coded: true }
    }

    pub(crate) fn loss_rule(&self) -> LossRule {
        let threshold = self.experiment.loss_threshold;
        match self.experiment.loss_detection {
            LossDetection::Early => LossRule::Quality(threshold),
            LossDetection::Timeout => LossRule::Timeout(threshold),
            LossDetection::Quic => LossRule::Quic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scene::{Scene, candidate, path};
    use super::*;
    use crate::frame::AckBlock;
    use crate::sent_transmissions::Content;

    fn acknowledge(scene: &mut Scene, number: u64) {
        let block = AckBlock {
            path: path(0),
            delay: Duration::ZERO,
            ranges: vec![number..=number],
            ecn: None,
        };
        let transmissions = &mut scene.paths.get_mut(path(0)).unwrap().transmissions;
        transmissions
            .acknowledge(scene.now, &block, &mut Vec::new())
            .unwrap();
    }

    /// Two paths. The first one is known to have a round-trip time of 20 ms.
    fn two_paths() -> Scene {
        let mut scene = Scene::new(Config::default(), &[(20, 100_000), (60, 100_000)]);
        scene.send(path(0));
        scene.wait(20);
        acknowledge(&mut scene, 0);
        scene
    }

    fn is_first_open(scene: &Scene) -> bool {
        let path = scene.paths.get(path(0)).unwrap();
        path.is_open(scene.now, &scene.config)
    }

    #[test]
    fn a_path_with_a_queue_gets_nothing_new() {
        let mut scene = two_paths();
        scene.send(path(0));
        scene.wait(20 + 100);
        assert!(is_first_open(&scene), "its backlog is max_path_backlog");
        scene.wait(1);
        assert!(!is_first_open(&scene));
        assert_eq!(
            EarliestDelivery.select_path(&scene.view(), candidate(0)),
            PathChoice::On(path(1))
        );
    }

    #[test]
    fn a_path_that_delivers_what_a_pause_held_up_takes_new_packets() {
        let mut scene = two_paths();
        let transmissions = &mut scene.paths.get_mut(path(0)).unwrap().transmissions;
        (1..=3).for_each(|id| transmissions.push(scene.now, Content::Original(id), 1000, 10_000));
        scene.wait(400);
        assert!(!is_first_open(&scene));
        acknowledge(&mut scene, 1);
        assert!(is_first_open(&scene), "although the next ones are as old");
        scene.wait(49);
        assert!(is_first_open(&scene));
        scene.wait(1);
        assert!(!is_first_open(&scene), "nothing followed");
    }
}

//! The parts in which schemes differ: the scheduler, the loss detection and the recovery.

use crate::config::{Config, LossDetection, Scheme};
use crate::frame::PacketHeader;
use crate::path::{Path, Paths};
use crate::recovery::RecoveryMethod;
use crate::sent_packets::SentPackets;
use crate::sent_transmissions::LossRule;
use hawser_units::{Instant, PathId, PathSet};
use std::time::Duration;

mod blest;
mod ecf;
mod fec;
mod fixed;
mod min_rtt;
mod pluribus;
mod redundant;
#[cfg(test)]
mod scene;
mod xlink;
mod xnc;

/// The result of path selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathChoice {
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
pub(crate) struct Candidate {
    /// The size of its frame in bytes.
    pub(crate) size: usize,
    /// The hash that identifies its flow.
    pub(crate) flow_hash: u64,
    /// The maximum time that a path may take to drain the queue to which the packet adds.
    pub(crate) queue: Duration,
    /// Whether its flow may always have data to send.
    pub(crate) is_bulk: bool,
}

/// A packet that is sent in addition to new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extra {
    /// A copy of a packet in flight, over another path.
    Copy { id: u64, path: PathId },
    /// A coded packet over `count` packets, at least two.
    Coded { start: u64, count: u8, path: PathId },
}

impl Extra {
    /// Returns a coded packet over `count` packets from `start` on; of one packet, a copy. A frame
    /// with a count of 1 is an uncoded packet.
    fn coded(start: u64, count: u8, path: PathId) -> Extra {
        match count {
            ..=1 => Extra::Copy { id: start, path },
            _ => Extra::Coded { start, count, path },
        }
    }
}

/// The state on which a scheduler decides.
pub(crate) struct View<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) paths: &'a Paths,
    pub(crate) sent_packets: &'a SentPackets,
    /// The number of packets that were not sent yet.
    pub(crate) waiting: usize,
}

/// Selects paths for a scheme.
pub(crate) trait Scheduler: std::fmt::Debug + Send {
    /// Selects the path of a packet.
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice;

    /// Returns a packet to send before the next new packet.
    fn extra(&mut self, _view: &View<'_>) -> Option<Extra> {
        None
    }
}

/// The parts of a scheme.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) loss: LossRule,
    pub(crate) recovery: RecoveryMethod,
    /// The number of packets before the newest that a coded packet may cover.
    pub(crate) lookback: usize,
}

impl Parts {
    pub(crate) fn of(config: &Config) -> Parts {
        Parts {
            scheduler: scheduler(config.scheme),
            loss: loss_rule(config),
            recovery: recovery(config),
            lookback: match config.scheme {
                Scheme::Fec => fec::WINDOW as usize,
                Scheme::Pluribus => pluribus::MAX_WINDOW as usize,
                _ => 0,
            },
        }
    }
}

fn scheduler(scheme: Scheme) -> Box<dyn Scheduler> {
    match scheme {
        Scheme::Xnc => Box::new(xnc::EarliestDelivery),
        Scheme::MinRtt | Scheme::XncPaper => Box::new(min_rtt::MinRtt),
        Scheme::Redundant => Box::new(redundant::Redundant),
        Scheme::Xlink => Box::new(xlink::Xlink::default()),
        Scheme::Ecf => Box::new(ecf::Ecf::default()),
        Scheme::Blest => Box::new(blest::Blest::default()),
        Scheme::Fec => Box::new(fec::Fec::default()),
        Scheme::Pluribus => Box::new(pluribus::Pluribus::default()),
        Scheme::Bonding => Box::new(fixed::Fixed::ByHash),
        Scheme::Single => Box::new(fixed::Fixed::First),
    }
}

fn loss_rule(config: &Config) -> LossRule {
    match config.loss_detection {
        LossDetection::Early => LossRule::Quality(config.loss_threshold),
        LossDetection::Timeout => LossRule::Timeout(config.loss_threshold),
        LossDetection::Quic => LossRule::Quic,
    }
}

fn recovery(config: &Config) -> RecoveryMethod {
    match config.scheme {
        Scheme::Xnc | Scheme::XncPaper => RecoveryMethod::OneShot {
            coded: config.coded,
        },
        Scheme::MinRtt | Scheme::Redundant | Scheme::Xlink | Scheme::Ecf | Scheme::Blest => {
            RecoveryMethod::Retransmit
        }
        Scheme::Fec | Scheme::Pluribus | Scheme::Bonding | Scheme::Single => RecoveryMethod::None,
    }
}

/// Returns the path with the lowest smoothed round-trip time, of those that have not failed if
/// there are any.
fn fastest<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<&'a Path> {
    paths.min_by_key(|path| {
        (
            path.transmissions.is_potentially_failed(),
            path.state.rtt.smoothed,
        )
    })
}

/// Returns the size of the frame of an uncoded packet, in bytes.
pub(crate) fn frame_size(bytes: &[u8]) -> usize {
    PacketHeader::LEN + bytes.len()
}

impl Config {
    /// Returns whether packets may be coded, so that receivers have to keep them for decoding.
    pub(crate) fn is_coded(&self) -> bool {
        let codes_ahead = matches!(self.scheme, Scheme::Fec | Scheme::Pluribus);
        codes_ahead || recovery(self) == RecoveryMethod::OneShot { coded: true }
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
        let mut scene = Scene::new(Scheme::Xnc, &[(20, 100_000), (60, 100_000)]);
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
            xnc::EarliestDelivery.select_path(&scene.view(), candidate(0)),
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

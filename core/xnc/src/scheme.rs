//! What makes one scheme differ from another: where a packet goes, when it counts as lost, what is done then.

use crate::config::{Config, Scheme};
use crate::outstanding::LossRule;
use crate::path::{Path, Paths};
use crate::pool::Pool;
use hawser_units::{Instant, PathId, PathSet};
use hawser_wire::xnc::PacketHeader;
use std::time::Duration;

mod blest;
mod ecf;
mod fec;
mod fixed;
mod min_rtt;
mod redundant;
#[cfg(test)]
mod scene;
mod xlink;
mod xnc;

pub(crate) use xnc::{expected, is_open};

/// Where a packet is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere yet.
    Wait,
    /// On one path.
    On(PathId),
    /// On each of several.
    OnAll(PathSet),
}

impl From<Option<PathId>> for Place {
    fn from(path: Option<PathId>) -> Place {
        path.map_or(Place::Wait, Place::On)
    }
}

/// A packet that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Bytes of its frame.
    pub(crate) size: usize,
    /// Tells flows apart.
    pub(crate) flow_hash: u64,
    /// How long the queue may take to drain that it makes on a path.
    pub(crate) queue: Duration,
    /// It is of a flow that may always have something to send.
    pub(crate) is_bulk: bool,
}

/// What is sent besides new packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extra {
    /// A packet that is already under way, over another path.
    Copy { id: u64, path: PathId },
    /// A combination of `count` packets.
    Coded { start: u64, count: u8, path: PathId },
}

/// What a scheme decides upon.
pub(crate) struct View<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) paths: &'a Paths,
    pub(crate) pool: &'a Pool,
    /// Packets that were not sent yet.
    pub(crate) waiting: usize,
}

/// What is done about a lost packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Nothing.
    None,
    /// It is sent again until it arrived.
    Resend,
    /// All that was lost of a range is sent once more, as much and as early as the windows allow: as combinations, or
    /// as it is.
    OneShot { coded: bool },
}

/// A scheme at work.
pub(crate) trait Behaviour: std::fmt::Debug + Send {
    /// Where a packet goes.
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place;

    /// What is to be sent before the next new packet.
    fn extra(&mut self, _view: &View<'_>) -> Option<Extra> {
        None
    }
}

/// The parts of which a scheme is made.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) behaviour: Box<dyn Behaviour>,
    pub(crate) loss: LossRule,
    pub(crate) recovery: Recovery,
    /// Packets before the newest that a combination may reach back to.
    pub(crate) reach: usize,
}

impl Parts {
    pub(crate) fn of(config: &Config) -> Parts {
        let quality = LossRule::Quality(config.loss_threshold);
        let one_shot = |coded| Recovery::OneShot { coded };
        let (behaviour, loss, recovery): (Box<dyn Behaviour>, _, _) = match config.scheme {
            Scheme::Xnc => (Box::new(xnc::Soonest), quality, one_shot(true)),
            Scheme::XncUncoded => (Box::new(xnc::Soonest), quality, one_shot(false)),
            Scheme::XncSlowLoss => (Box::new(xnc::Soonest), LossRule::Quic, one_shot(true)),
            Scheme::MinRtt => (Box::new(min_rtt::MinRtt), LossRule::Quic, Recovery::Resend),
            Scheme::Redundant => (
                Box::new(redundant::Redundant),
                LossRule::Quic,
                Recovery::Resend,
            ),
            Scheme::Xlink => (
                Box::new(xlink::Xlink::default()),
                LossRule::Quic,
                Recovery::Resend,
            ),
            Scheme::Ecf => (
                Box::new(ecf::Ecf::default()),
                LossRule::Quic,
                Recovery::Resend,
            ),
            Scheme::Blest => (
                Box::new(blest::Blest::default()),
                LossRule::Quic,
                Recovery::Resend,
            ),
            Scheme::Fec => (
                Box::new(fec::Fec::default()),
                LossRule::Quic,
                Recovery::None,
            ),
            Scheme::Bonding => (
                Box::new(fixed::Fixed::ByHash),
                LossRule::Quic,
                Recovery::None,
            ),
            Scheme::Single => (
                Box::new(fixed::Fixed::First),
                LossRule::Quic,
                Recovery::None,
            ),
        };
        let reach = if config.scheme == Scheme::Fec {
            fec::WINDOW as usize
        } else {
            0
        };
        Parts {
            behaviour,
            loss,
            recovery,
            reach,
        }
    }
}

/// The path of the lowest smoothed round-trip time, of those that have not failed if there are any.
fn fastest<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<&'a Path> {
    paths.min_by_key(|path| (path.outstanding.has_failed(), path.state.rtt.smoothed))
}

/// Bytes of the frame of an original.
pub(crate) fn frame_size(bytes: &[u8]) -> usize {
    PacketHeader::LEN + bytes.len()
}

impl Scheme {
    /// Whether packets may be coded, so that receivers have to keep what arrived.
    pub(crate) fn is_coded(self) -> bool {
        matches!(self, Scheme::Xnc | Scheme::XncSlowLoss | Scheme::Fec)
    }
}

#[cfg(test)]
mod tests {
    use super::scene::{Scene, candidate, path};
    use super::*;
    use crate::outstanding::Content;
    use hawser_wire::xnc::AckBlock;

    fn acknowledge(scene: &mut Scene, number: u64) {
        let block = AckBlock {
            path: path(0),
            delay: Duration::ZERO,
            ranges: vec![number..=number],
            ecn: None,
        };
        let outstanding = &mut scene.paths.get_mut(path(0)).unwrap().outstanding;
        outstanding
            .acknowledge(scene.now, &block, &mut Vec::new())
            .unwrap();
    }

    /// Two paths, of which the first is known to answer after 20 ms.
    fn two_paths() -> Scene {
        let mut scene = Scene::new(Scheme::Xnc, &[(20, 100_000), (60, 100_000)]);
        scene.send(path(0));
        scene.wait(20);
        acknowledge(&mut scene, 0);
        scene
    }

    fn is_first_open(scene: &Scene) -> bool {
        is_open(scene.paths.get(path(0)).unwrap(), scene.now, &scene.config)
    }

    #[test]
    fn a_path_with_a_queue_gets_nothing_new() {
        let mut scene = two_paths();
        scene.send(path(0));
        scene.wait(20 + 100);
        assert!(
            is_first_open(&scene),
            "no later than at best by queue_delay"
        );
        scene.wait(1);
        assert!(!is_first_open(&scene));
        assert_eq!(
            xnc::Soonest.place(&scene.view(), candidate(0)),
            Place::On(path(1))
        );
    }

    #[test]
    fn a_path_that_delivers_what_a_pause_held_up_takes_new_packets() {
        let mut scene = two_paths();
        let outstanding = &mut scene.paths.get_mut(path(0)).unwrap().outstanding;
        (1..=3).for_each(|id| outstanding.push(scene.now, Content::Original(id), 1000, 10_000));
        scene.wait(400);
        assert!(!is_first_open(&scene));
        acknowledge(&mut scene, 1);
        assert!(is_first_open(&scene), "though the next ones are as old");
        scene.wait(49);
        assert!(is_first_open(&scene));
        scene.wait(1);
        assert!(!is_first_open(&scene), "nothing followed");
    }
}

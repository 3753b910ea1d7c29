//! Paths and packets for tests of schedulers.

use super::{Candidate, View};
use crate::config::{Config, Scheme};
use crate::path::{PathState, Paths, Rtt};
use crate::sent_packets::{Hint, SentPackets};
use crate::sent_transmissions::{Content, QUIC_OVERHEAD};
use hawser_units::{ByteSize, Instant, PathId};
use std::time::Duration;

/// The size of each packet in bytes.
const PACKET: usize = 1000;

pub(super) struct Scene {
    pub(super) now: Instant,
    pub(super) config: Config,
    pub(super) paths: Paths,
    pub(super) waiting: usize,
    sent_packets: SentPackets,
}

impl Scene {
    /// Creates paths with these round-trip times in milliseconds and windows in bytes.
    pub(super) fn new(scheme: Scheme, paths: &[(u64, u64)]) -> Scene {
        let config = Config::of(scheme);
        let mut scene = Scene {
            now: Instant::ZERO,
            sent_packets: SentPackets::default(),
            paths: Paths::default(),
            waiting: 0,
            config,
        };
        for (id, (rtt_ms, window)) in PathId::all().zip(paths) {
            scene.paths.add(scene.now, id, &scene.config);
            scene.update(id, *rtt_ms, *window);
        }
        scene
    }

    pub(super) fn update(&mut self, id: PathId, rtt_ms: u64, window: u64) {
        let smoothed = Duration::from_millis(rtt_ms);
        let state = PathState {
            congestion_window: ByteSize(window),
            in_flight: ByteSize(0),
            queued: ByteSize(0),
            rtt: Rtt {
                smoothed,
                ..Rtt::default()
            },
            datagram_size: 1400,
        };
        self.paths.get_mut(id).unwrap().update(state);
    }

    pub(super) fn wait(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    /// Sends a packet and returns its number.
    pub(super) fn send(&mut self, id: PathId) -> u64 {
        let packet = self.sent_packets.next();
        self.sent_packets
            .push(self.now, vec![7; PACKET].into(), Hint::default(), 0);
        let original = self.sent_packets.get_mut(packet).unwrap();
        (original.in_flight, original.path) = (1, Some(id));
        let path = self.paths.get_mut(id).unwrap();
        let in_flight = path.outstanding_bytes();
        path.transmissions.push(
            self.now,
            Content::Original(packet),
            PACKET as u64 + QUIC_OVERHEAD,
            in_flight,
        );
        packet
    }

    pub(super) fn view(&self) -> View<'_> {
        let Scene {
            now,
            config,
            paths,
            sent_packets,
            waiting,
        } = self;
        View {
            now: *now,
            config,
            paths,
            sent_packets,
            waiting: *waiting,
        }
    }
}

/// Returns a packet of a flow.
pub(super) fn candidate(flow_hash: u64) -> Candidate {
    Candidate {
        size: PACKET,
        flow_hash,
        queue: Config::default().queue_target,
        is_bulk: false,
    }
}

pub(super) fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

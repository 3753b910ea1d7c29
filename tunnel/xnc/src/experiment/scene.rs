//! Paths and packets for tests of schedulers.

use super::{Candidate, View};
use crate::Config;
use crate::path::{PathState, Paths, Rtt};
use crate::sent_packets::{Hint, SentPackets};
use crate::sent_transmissions::{Content, QUIC_OVERHEAD};
use hawser_units::{ByteSize, Instant, PathId};
use std::time::Duration;

/// The size of each packet in bytes.
const PACKET: usize = 1000;

/// Paths, and the packets that were sent over them.
#[derive(Debug)]
pub struct Scene {
    /// The time.
    pub now: Instant,
    /// The parameters of the session.
    pub config: Config,
    /// The paths.
    pub paths: Paths,
    /// The number of packets that were not sent yet.
    pub waiting: usize,
    sent_packets: SentPackets,
}

impl Scene {
    /// Creates paths with these round-trip times in milliseconds and windows in bytes.
    pub fn new(config: Config, paths: &[(u64, u64)]) -> Scene {
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

    /// Sets the round-trip time of a path in milliseconds and its window in bytes.
    pub fn update(&mut self, id: PathId, rtt_ms: u64, window: u64) {
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

    /// Fills the congestion window of a path.
    pub fn fill(&mut self, id: PathId) {
        let state = &mut self.paths.get_mut(id).unwrap().state;
        state.in_flight = state.congestion_window;
    }

    /// Lets time pass.
    pub fn wait(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    /// Sends a packet and returns its number.
    pub fn send(&mut self, id: PathId) -> u64 {
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

    /// Returns what a scheduler sees.
    pub fn view(&self) -> View<'_> {
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
pub fn candidate(flow_hash: u64) -> Candidate {
    Candidate {
        size: PACKET,
        flow_hash,
        queue: Config::default().experiment.queue_target,
        is_bulk: false,
    }
}

/// Returns the path of that index.
pub fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

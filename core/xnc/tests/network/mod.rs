//! Two endpoints, connected by paths of fixed delay and window that can lose, reorder and hold
//! datagrams.

#![allow(dead_code, reason = "each test uses a part of it")]

use hawser_units::{ByteSize, Instant, PathId};
use hawser_xnc::{Config, Ecn, Endpoint, Event, Hint, Packet, PathState, RejectReason, Rtt};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// The time in which QUIC declares a packet lost.
const QUIC_TIMEOUT: Duration = Duration::from_millis(300);

const QUIC_OVERHEAD: u64 = 32;

pub(crate) fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

/// A bidirectional path.
pub(crate) struct Pipe {
    pub(crate) delay: Duration,
    pub(crate) window: u64,
    /// Whether all datagrams are lost.
    pub(crate) is_cut: bool,
    /// One in this number of the first end's datagrams is lost. With 0, none is.
    pub(crate) lose_every: u64,
    /// The number of the next datagrams of the first end that are lost.
    pub(crate) lose_next: u64,
    sent: u64,
    /// From the first end, and from the second.
    directions: [Direction; 2],
}

#[derive(Default)]
struct Direction {
    in_transit: VecDeque<(Instant, Vec<u8>)>,
    in_flight: VecDeque<(Instant, u64)>,
}

impl Pipe {
    pub(crate) fn new(delay: Duration, window: u64) -> Self {
        Pipe {
            delay,
            window,
            is_cut: false,
            lose_every: 0,
            lose_next: 0,
            sent: 0,
            directions: Default::default(),
        }
    }

    /// Moves the next datagram from the first end behind all others.
    pub(crate) fn reorder(&mut self) {
        let in_transit = &mut self.directions[0].in_transit;
        if let (Some(first), Some(last)) = (in_transit.pop_front(), in_transit.back()) {
            let at = last.0;
            in_transit.push_back((at, first.1));
        }
    }

    fn push(&mut self, now: Instant, end: usize, datagram: Vec<u8>) {
        let is_first = end == 0;
        self.sent += u64::from(is_first);
        let chance =
            self.lose_every > 0 && self.sent.is_multiple_of(self.lose_every) || self.lose_next > 0;
        let is_lost = self.is_cut || is_first && chance;
        if is_first {
            self.lose_next = self.lose_next.saturating_sub(1);
        }
        let size = datagram.len() as u64 + QUIC_OVERHEAD;
        let settled_at = now
            + if is_lost {
                QUIC_TIMEOUT
            } else {
                2 * self.delay
            };
        self.directions[end].in_flight.push_back((settled_at, size));
        if !is_lost {
            self.directions[end]
                .in_transit
                .push_back((now + self.delay, datagram));
        }
    }

    fn state(&mut self, now: Instant, end: usize) -> PathState {
        let in_flight = &mut self.directions[end].in_flight;
        in_flight.retain(|(settled_at, _)| *settled_at > now);
        let bytes: u64 = in_flight.iter().map(|(_, size)| size).sum();
        let rtt = 2 * self.delay;
        PathState {
            congestion_window: ByteSize(self.window),
            in_flight: ByteSize(bytes),
            queued: ByteSize(0),
            rtt: Rtt {
                smoothed: rtt,
                variation: MS,
                latest: rtt,
                min: rtt,
            },
            datagram_size: 1400,
        }
    }
}

/// A session.
pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) ends: [Endpoint; 2],
    pub(crate) pipes: BTreeMap<PathId, Pipe>,
    /// The packets received by the second end, and when.
    pub(crate) received: Vec<(Instant, Packet)>,
    pub(crate) events: Vec<(Instant, Event)>,
    pub(crate) sent: u64,
}

impl Network {
    pub(crate) fn new(config: Config, pipes: Vec<Pipe>) -> Self {
        let ends = [Endpoint::new(config.clone()), Endpoint::new(config)];
        let (received, events) = (Vec::new(), Vec::new());
        let mut network = Network {
            now: Instant::ZERO,
            ends,
            pipes: BTreeMap::new(),
            received,
            events,
            sent: 0,
        };
        for (index, pipe) in pipes.into_iter().enumerate() {
            network.add(path(index as u8), pipe);
        }
        network
    }

    pub(crate) fn add(&mut self, path: PathId, pipe: Pipe) {
        self.pipes.insert(path, pipe);
        for end in &mut self.ends {
            end.add_path(self.now, path);
        }
        self.turn();
    }

    pub(crate) fn remove(&mut self, path: PathId) {
        self.pipes.remove(&path);
        for end in &mut self.ends {
            end.remove_path(self.now, path);
        }
    }

    /// Sends a frame of this number of packets from the first end. The packets start with their
    /// number.
    pub(crate) fn send_frame(&mut self, packets: u64, bytes: usize) {
        self.send_frame_of(Hint::default(), packets, bytes);
    }

    /// Same as [`Network::send_frame`], for a flow.
    pub(crate) fn send_frame_of(&mut self, hint: Hint, packets: u64, bytes: usize) {
        for index in 0..packets {
            self.send(
                Hint {
                    end_of_frame: index + 1 == packets,
                    ..hint
                },
                bytes,
            );
        }
        self.turn();
    }

    /// Sends a packet from the first end and returns its number.
    pub(crate) fn send(&mut self, hint: Hint, bytes: usize) -> u64 {
        let number = self.sent;
        let mut packet = vec![number as u8; bytes.max(8)];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        self.sent += 1;
        self.ends[0].handle_packet(self.now, packet, hint).unwrap();
        number
    }

    /// Advances the time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.next().filter(|next| *next <= end) {
            self.now = next.max(self.now);
            self.turn();
        }
        self.now = end;
        self.turn();
    }

    /// Sends a video: a frame every 33 ms, of `packets` packets of 1200 bytes each.
    pub(crate) fn stream(&mut self, time: Duration, packets: u64) {
        let end = self.now + time;
        while self.now < end {
            self.send_frame(packets, 1200);
            self.run_for(33 * MS);
        }
    }

    /// Returns the numbers of the received packets.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let number = |packet: &Packet| u64::from_be_bytes(packet.bytes[..8].try_into().unwrap());
        self.received
            .iter()
            .map(|(_, packet)| number(packet))
            .collect()
    }

    fn next(&mut self) -> Option<Instant> {
        let pipes = self.pipes.values().flat_map(|pipe| &pipe.directions);
        let times = pipes.flat_map(|direction| {
            let settled_at = direction.in_flight.iter().map(|(at, _)| *at).min();
            let arrival = direction.in_transit.iter().map(|(at, _)| *at).min();
            [settled_at, arrival]
        });
        let timeouts = self.ends.iter_mut().map(|end| end.poll_timeout());
        let next = times.chain(timeouts).flatten().min();
        // Work that is due but could not be done waits for the next event.
        next.map(|next| next.max(self.now + MS / 10))
    }

    fn turn(&mut self) {
        for (id, pipe) in &mut self.pipes {
            for (from, direction) in pipe.directions.iter_mut().enumerate() {
                while direction
                    .in_transit
                    .front()
                    .is_some_and(|(at, _)| *at <= self.now)
                {
                    let (_, datagram) = direction.in_transit.pop_front().unwrap();
                    let result =
                        self.ends[1 - from].handle_datagram(self.now, *id, &datagram, Ecn::Ect0);
                    // Datagrams of a removed path, or of packets that are no longer useful, are
                    // rejected.
                    assert!(
                        matches!(
                            result,
                            Ok(()) | Err(RejectReason::UnknownPath | RejectReason::Undecodable)
                        ),
                        "{result:?}"
                    );
                }
            }
        }
        for (index, end) in self.ends.iter_mut().enumerate() {
            end.handle_timeout(self.now);
            for (id, pipe) in &mut self.pipes {
                end.update_path(self.now, *id, pipe.state(self.now, index));
            }
            while let Some(transmit) = end.poll_transmit(self.now) {
                let pipe = self.pipes.get_mut(&transmit.path).expect("the path exists");
                pipe.push(self.now, index, transmit.datagram);
            }
        }
        while let Some(packet) = self.ends[1].poll_packet() {
            self.received.push((self.now, packet));
        }
        while let Some(event) = self.ends[0].poll_event() {
            self.events.push((self.now, event));
        }
    }
}

//! Two endpoints, connected by paths that can lose, reorder and hold datagrams. A path has a fixed
//! delay and window, or a bottleneck with a queue and a window that adapts.

#![allow(dead_code, reason = "each test uses a part of it")]

use bytes::Bytes;
use hawser_units::{ByteSize, Ecn, Instant, PathId};
use hawser_xnc::frame::Frame;
use hawser_xnc::{Config, Endpoint, Event, Hint, Packet, PathState, RejectReason, Rtt};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// The time in which QUIC declares a packet lost.
const QUIC_TIMEOUT: Duration = Duration::from_millis(300);

const QUIC_OVERHEAD: u64 = 32;

/// The largest datagram of a path in bytes.
pub(crate) const DATAGRAM_SIZE: usize = 1400;

pub(crate) fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

/// A seeded random number generator (SplitMix64).
#[derive(Default)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns `true` with this probability.
    fn chance(&mut self, probability: f64) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }
}

/// A bidirectional path.
pub(crate) struct Pipe {
    /// The one-way delay without a queue.
    pub(crate) delay: Duration,
    /// The congestion window in bytes; the initial one if it `adapts`.
    pub(crate) window: u64,
    /// Whether the window grows with each round trip and is halved after a loss.
    pub(crate) adapts: bool,
    /// The rate in bytes per second of the bottleneck; `None` if there is none.
    pub(crate) rate: Option<u64>,
    /// The maximum queue before the bottleneck in bytes. Further datagrams are dropped.
    pub(crate) max_queue: u64,
    /// Whether all datagrams are lost.
    pub(crate) is_cut: bool,
    /// One in this number of the first end's datagrams is lost. With 0, none is.
    pub(crate) lose_every: u64,
    /// The number of the next datagrams of the first end that are lost.
    pub(crate) lose_next: u64,
    /// The probability that a datagram of the first end is lost.
    pub(crate) loss: f64,
    /// The number of earlier datagrams that every tenth of the first end's overtakes, on average.
    pub(crate) overtaken: usize,
    pub(crate) random: Random,
    /// Datagrams of the first end.
    pub(crate) sent: u64,
    /// From the first end, and from the second.
    pub(crate) directions: [Direction; 2],
}

#[derive(Default)]
pub(crate) struct Direction {
    /// Datagrams before the bottleneck, and when they were sent.
    queue: VecDeque<(Instant, Bytes)>,
    queue_bytes: u64,
    /// When the first datagram of the queue has passed the bottleneck.
    departs_at: Option<Instant>,
    in_transit: VecDeque<(Instant, Bytes)>,
    in_flight: VecDeque<Flight>,
    /// Datagrams in order since the last one that overtook others.
    in_order: usize,
    rtt: Option<Duration>,
    /// The congestion window, if it adapts.
    window: Option<u64>,
    /// Losses of datagrams that were sent before this time do not reduce the window again.
    reduced_at: Instant,
    counts: Counts,
}

/// Counters of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// The longest queue in bytes.
    pub(crate) longest_queue: u64,
    /// Datagrams that were dropped because the queue was full.
    pub(crate) dropped: u64,
    /// Datagrams other than acknowledgements that exceeded the window.
    pub(crate) beyond_window: u64,
    /// Datagrams that overtook others.
    pub(crate) overtook: u64,
}

/// A datagram that is neither acknowledged nor known to be lost.
struct Flight {
    sent_at: Instant,
    settled_at: Instant,
    size: u64,
    is_lost: bool,
}

/// The maximum time by which a datagram arrives earlier because it overtakes others.
const MAX_LEAD: Duration = Duration::from_millis(15);

/// The minimum of an adaptive window.
const MIN_WINDOW: u64 = 15_000;

impl Pipe {
    pub(crate) fn new(delay: Duration, window: u64) -> Self {
        Pipe {
            delay,
            window,
            adapts: false,
            rate: None,
            max_queue: u64::MAX,
            is_cut: false,
            lose_every: 0,
            lose_next: 0,
            loss: 0.0,
            overtaken: 0,
            random: Random::default(),
            sent: 0,
            directions: Default::default(),
        }
    }

    /// Creates a path with a bottleneck of this rate in megabits per second. Its window adapts.
    pub(crate) fn bottleneck(delay: Duration, mbps: u64, seed: u64) -> Self {
        Pipe {
            adapts: true,
            rate: Some(mbps * 125_000),
            random: Random(seed),
            ..Pipe::new(delay, MIN_WINDOW)
        }
    }

    /// Returns the counters of the first end's datagrams.
    pub(crate) fn counts(&self) -> Counts {
        self.directions[0].counts
    }

    /// Restarts the counters.
    pub(crate) fn reset_counts(&mut self) {
        for direction in &mut self.directions {
            direction.counts = Counts::default();
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

    fn push(&mut self, now: Instant, end: usize, datagram: Bytes) {
        let size = size(&datagram);
        self.check_window(end, &datagram);
        let is_lost = self.loses(end);
        let direction = &mut self.directions[end];
        let is_full = self.rate.is_some() && direction.queue_bytes + size > self.max_queue;
        direction.counts.dropped += u64::from(is_full && !is_lost);
        if is_lost || is_full {
            direction.in_flight.push_back(Flight {
                sent_at: now,
                settled_at: now + QUIC_TIMEOUT,
                size,
                is_lost: true,
            });
            return;
        }
        direction.queue_bytes += size;
        let counts = &mut direction.counts;
        counts.longest_queue = counts.longest_queue.max(direction.queue_bytes);
        direction.queue.push_back((now, datagram));
        self.advance(now);
    }

    /// Counts a datagram for which the window has no room. Acknowledgements ignore the window.
    fn check_window(&mut self, end: usize, datagram: &[u8]) {
        let is_ack = matches!(Frame::parse(datagram), Ok(Frame::Acks(_)));
        let direction = &self.directions[end];
        let used = direction.bytes_in_flight() + size(datagram);
        if !is_ack && used > direction.window.unwrap_or(self.window) {
            self.directions[end].counts.beyond_window += 1;
        }
    }

    fn loses(&mut self, end: usize) -> bool {
        if end == 1 {
            return self.is_cut;
        }
        self.sent += 1;
        let is_unlucky = self.loss > 0.0 && self.random.chance(self.loss);
        let is_next = self.lose_next > 0;
        self.lose_next = self.lose_next.saturating_sub(1);
        let is_turn = self.lose_every > 0 && self.sent.is_multiple_of(self.lose_every);
        self.is_cut || is_turn || is_next || is_unlucky
    }

    /// Moves datagrams through the bottleneck.
    fn advance(&mut self, now: Instant) {
        for end in 0..2 {
            while let Some(departs_at) = self.next_departure(end, now) {
                if departs_at > now {
                    break;
                }
                self.directions[end].departs_at = None;
                if let Some((sent_at, datagram)) = self.directions[end].queue.pop_front() {
                    self.directions[end].queue_bytes -= size(&datagram);
                    self.depart(end, sent_at, departs_at, datagram);
                }
                if self.rate.is_some() && !self.directions[end].queue.is_empty() {
                    self.directions[end].departs_at = self.departure(end, departs_at);
                }
            }
        }
    }

    /// Returns when the first datagram of a queue has passed the bottleneck.
    fn next_departure(&mut self, end: usize, now: Instant) -> Option<Instant> {
        if self.directions[end].departs_at.is_none() {
            self.directions[end].departs_at = self.departure(end, now);
        }
        self.directions[end].departs_at
    }

    /// Returns when the first datagram of a queue, which reaches the bottleneck at `from`, has
    /// passed it.
    fn departure(&self, end: usize, from: Instant) -> Option<Instant> {
        let (_, datagram) = self.directions[end].queue.front()?;
        let time = |rate| Duration::from_nanos(size(datagram) * 1_000_000_000 / rate);
        Some(from + self.rate.map_or(Duration::ZERO, time))
    }

    fn depart(&mut self, end: usize, sent_at: Instant, now: Instant, datagram: Bytes) {
        let overtaken = if end == 0 { self.overtaken } else { 0 };
        let direction = &mut self.directions[end];
        direction.in_flight.push_back(Flight {
            sent_at,
            settled_at: now + 2 * self.delay,
            size: size(&datagram),
            is_lost: false,
        });
        direction.in_order += 1;
        let arrival = now + self.delay;
        // No datagram is overtaken twice, or by one that was sent much later.
        let position = direction.in_transit.len().checked_sub(overtaken);
        let first =
            position.and_then(|position| Some((position, direction.in_transit.get(position)?.0)));
        match first.filter(|(_, at)| direction.in_order > overtaken && arrival <= *at + MAX_LEAD) {
            Some((position, at)) if self.random.chance(0.1) => {
                direction.in_transit.insert(position, (at, datagram));
                direction.in_order = 0;
                direction.counts.overtook += 1;
            }
            _ => direction.in_transit.push_back((arrival, datagram)),
        }
    }

    fn state(&mut self, now: Instant, end: usize) -> PathState {
        let least = 2 * self.delay;
        let direction = &mut self.directions[end];
        direction.settle(now, self.adapts.then_some(self.window));
        let rtt = match self.rate {
            Some(_) => direction.rtt.unwrap_or(least),
            None => least,
        };
        PathState {
            congestion_window: ByteSize(direction.window.unwrap_or(self.window)),
            in_flight: ByteSize(direction.bytes_in_flight()),
            queued: ByteSize(0),
            rtt: Rtt {
                smoothed: rtt,
                variation: MS,
                latest: rtt,
                min: least,
            },
            datagram_size: DATAGRAM_SIZE,
        }
    }
}

impl Direction {
    fn bytes_in_flight(&self) -> u64 {
        let departed: u64 = self.in_flight.iter().map(|flight| flight.size).sum();
        departed + self.queue_bytes
    }

    /// Forgets the datagrams that are acknowledged or known to be lost, and updates the window if
    /// it adapts, starting with `initial`.
    fn settle(&mut self, now: Instant, initial: Option<u64>) {
        let is_settled = |flight: &Flight| flight.settled_at <= now;
        let mut settled = Vec::new();
        for flight in std::mem::take(&mut self.in_flight) {
            match is_settled(&flight) {
                true => settled.push(flight),
                false => self.in_flight.push_back(flight),
            }
        }
        for flight in settled {
            if !flight.is_lost {
                let sample = flight.settled_at.saturating_since(flight.sent_at);
                self.rtt = Some(self.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
            }
            self.window = initial.map(|initial| {
                let window = self.window.unwrap_or(initial);
                self.adapt(now, window, &flight)
            });
        }
    }

    /// Returns the window after a datagram was acknowledged or lost: if it is in use, it grows by a
    /// packet per round trip, or by the acknowledged bytes before the first loss. It is halved at
    /// most once per round trip (RFC 5681).
    fn adapt(&mut self, now: Instant, window: u64, flight: &Flight) -> u64 {
        if !flight.is_lost {
            let is_in_use = 2 * (self.bytes_in_flight() + flight.size) >= window;
            return match (is_in_use, self.reduced_at == Instant::ZERO) {
                (false, _) => window,
                (true, true) => window + flight.size,
                (true, false) => window + 1400 * flight.size / window,
            };
        }
        if flight.sent_at < self.reduced_at {
            return window;
        }
        self.reduced_at = now;
        (window / 2).max(MIN_WINDOW)
    }

    /// Returns the times at which something changes.
    fn times(&self) -> impl Iterator<Item = Instant> {
        let settled_at = self.in_flight.iter().map(|flight| flight.settled_at).min();
        let arrival = self.in_transit.iter().map(|(at, _)| *at).min();
        [settled_at, arrival, self.departs_at].into_iter().flatten()
    }
}

/// Returns the bytes that a datagram takes on the path.
fn size(datagram: &[u8]) -> u64 {
    datagram.len() as u64 + QUIC_OVERHEAD
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
        let times = pipes.flat_map(Direction::times);
        let timeouts = self.ends.iter_mut().map(|end| end.poll_timeout());
        let next = times.chain(timeouts.flatten()).min();
        // Work that is due but could not be done waits for the next event.
        next.map(|next| next.max(self.now + MS / 10))
    }

    fn turn(&mut self) {
        for (id, pipe) in &mut self.pipes {
            pipe.advance(self.now);
            for (from, direction) in pipe.directions.iter_mut().enumerate() {
                while direction
                    .in_transit
                    .front()
                    .is_some_and(|(at, _)| *at <= self.now)
                {
                    let (_, datagram) = direction.in_transit.pop_front().unwrap();
                    let result = self.ends[1 - from].handle_datagram(
                        self.now,
                        *id,
                        datagram,
                        Some(Ecn::Ect0),
                    );
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
                end.update_path(*id, pipe.state(self.now, index));
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

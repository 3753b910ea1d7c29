use crate::config::Config;
use crate::numbers::{Arrived, Delivered, Insert, expand};
use crate::release::{Packet, Release};
use crate::sender::{MAX_PACKET, Transmit, seed};
use crate::stats::{ReceiverStats, Refused};
use hawser_coding::Decoder;
use hawser_units::{Instant, MAX_PATHS, PathId, PathSet};
use hawser_wire::xnc::{AckBlock, EcnCounts, PacketHeader, emit_acks};
use std::collections::VecDeque;
use std::time::Duration;

/// How far beyond the largest number seen a packet's, or a transmission's, may be.
const MAX_JUMP: u64 = 1 << 20;

/// Paths that carry acknowledgements.
const ACK_PATHS: usize = 2;

/// How often it is noted which packets are the newest.
const HORIZONS: Duration = Duration::from_millis(100);

/// The ECN field of the IP packet that brought a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// The receiver cannot see it.
    #[default]
    Unknown,
    /// Not capable of ECN.
    NotEct,
    /// Capable, ECT(0).
    Ect0,
    /// Capable, ECT(1).
    Ect1,
    /// Congestion experienced.
    Ce,
}

/// The receiving side of a session.
#[derive(Debug)]
pub(crate) struct Receiver {
    ack_delay: Duration,
    present: PathSet,
    /// Also of paths that vanished: should they return, their transmissions are counted on.
    paths: [Option<Incoming>; MAX_PATHS],
    largest: Option<u64>,
    delivered: Delivered,
    release: Release,
    decoder: Option<Decoder>,
    /// How long packets may be of use for decoding.
    memory: Duration,
    horizons: VecDeque<Horizon>,
    ack_due: Option<Instant>,
    /// Acknowledgements that are still to go over these paths.
    acks: Vec<Transmit>,
    stats: ReceiverStats,
}

/// When packets are of no use any more.
#[derive(Debug)]
struct Horizon {
    noted: Instant,
    until: Instant,
    /// All before this one.
    end: u64,
}

/// What arrived over a path.
#[derive(Debug, Default)]
struct Incoming {
    arrived: Arrived,
    largest_at: Instant,
    ecn: Option<EcnCounts>,
    unacknowledged: bool,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Self {
        Receiver {
            ack_delay: config.ack_delay,
            present: PathSet::EMPTY,
            paths: Default::default(),
            largest: None,
            delivered: Delivered::default(),
            release: Release::new(config),
            decoder: config
                .scheme
                .is_coded()
                .then(|| Decoder::new(decoder_config(config))),
            memory: config.expiry * 2,
            horizons: VecDeque::new(),
            ack_due: None,
            acks: Vec::new(),
            stats: ReceiverStats::default(),
        }
    }

    pub(crate) fn add_path(&mut self, path: PathId) {
        self.paths[path.index()].get_or_insert_default();
        self.present = self.present.with(path);
    }

    pub(crate) fn remove_path(&mut self, path: PathId) {
        self.present = self.present.without(path);
        self.acks.retain(|ack| ack.path != path);
    }

    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        path: PathId,
        header: PacketHeader,
        bytes: &[u8],
        ecn: Ecn,
    ) -> Result<(), Refused> {
        let incoming = self.incoming(path)?;
        let number = expand(header.transmission.into(), 16, incoming.arrived.largest());
        let start = expand(header.start.into(), 24, self.largest);
        let last = start + u64::from(header.count) - 1;
        if last > self.largest.map_or(0, |largest| largest + 1) + MAX_JUMP {
            return Err(Refused::TooFarAhead);
        }
        self.note(now, path, number, ecn)?;
        self.largest = self.largest.max(Some(last));
        self.note_horizon(now);
        if header.count > 1 {
            self.stats.coded += 1;
            let decoder = self.decoder.as_mut().ok_or(Refused::Undecodable)?;
            let seed = seed(path, number, start);
            decoder
                .handle_coded(start, header.count.into(), seed, bytes)
                .map_err(|_| Refused::Undecodable)?;
        } else if self.deliver(now, start, || bytes.to_vec(), false)
            && let Some(decoder) = &mut self.decoder
        {
            // What it refuses is known, or too old to help.
            let _ = decoder.handle_original(start, bytes);
        }
        self.deliver_decoded(now);
        Ok(())
    }

    fn deliver_decoded(&mut self, now: Instant) {
        while let Some((id, bytes)) = self.decoder.as_mut().and_then(Decoder::poll_packet) {
            self.deliver(now, id, || bytes, true);
        }
    }

    pub(crate) fn handle_ping(
        &mut self,
        now: Instant,
        path: PathId,
        number: u64,
        ecn: Ecn,
    ) -> Result<(), Refused> {
        let largest = self.incoming(path)?.arrived.largest();
        if number > largest.unwrap_or(0).saturating_add(MAX_JUMP) {
            return Err(Refused::TooFarAhead);
        }
        self.note(now, path, number, ecn)
    }

    fn incoming(&mut self, path: PathId) -> Result<&mut Incoming, Refused> {
        let is_present = self.present.contains(path);
        self.paths[path.index()]
            .as_mut()
            .filter(|_| is_present)
            .ok_or(Refused::NoPath)
    }

    fn note(&mut self, now: Instant, path: PathId, number: u64, ecn: Ecn) -> Result<(), Refused> {
        let ack_due = now + self.ack_delay;
        let incoming = self.incoming(path)?;
        let is_largest = incoming
            .arrived
            .largest()
            .is_none_or(|largest| number > largest);
        let inserted = incoming.arrived.insert(number);
        if inserted == Insert::Repeated {
            return Err(Refused::Repeated);
        }
        if is_largest {
            incoming.largest_at = now;
        }
        incoming.count(ecn);
        // One too old cannot be acknowledged any more; whether what it carries is new shows there.
        if inserted == Insert::New {
            incoming.unacknowledged = true;
            self.ack_due.get_or_insert(ack_due);
        }
        Ok(())
    }

    /// Hands a packet out, unless it was; true when it is.
    fn deliver(
        &mut self,
        now: Instant,
        id: u64,
        bytes: impl FnOnce() -> Vec<u8>,
        recovered: bool,
    ) -> bool {
        if !self.delivered.insert(id) {
            self.stats.duplicates += 1;
            return false;
        }
        self.stats.delivered += 1;
        self.stats.recovered += u64::from(recovered);
        self.release.push(
            now,
            Packet {
                id,
                bytes: bytes(),
                recovered,
            },
        );
        true
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.release.handle_timeout(now);
        while let Some(horizon) = self.horizons.front().filter(|horizon| horizon.until <= now) {
            if let Some(decoder) = &mut self.decoder {
                decoder.forget_before(horizon.end);
            }
            self.horizons.pop_front();
        }
    }

    /// Notes up to which packets all can be forgotten once the one that came now is of no use.
    fn note_horizon(&mut self, now: Instant) {
        let (until, end) = (
            now + self.memory,
            self.largest.map_or(0, |largest| largest + 1),
        );
        match self
            .horizons
            .back_mut()
            .filter(|horizon| now < horizon.noted + HORIZONS)
        {
            Some(horizon) => (horizon.until, horizon.end) = (until, end),
            None if self.decoder.is_some() => {
                self.horizons.push_back(Horizon {
                    noted: now,
                    until,
                    end,
                });
            }
            None => {}
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let horizon = self.horizons.front().map(|horizon| horizon.until);
        self.ack_due
            .into_iter()
            .chain(self.release.poll_timeout())
            .chain(horizon)
            .min()
    }

    pub(crate) fn poll_packet(&mut self) -> Option<Packet> {
        self.release.pop()
    }

    /// What the packets cost that may help to decode others, or wait for others.
    pub(crate) fn memory(&self) -> u64 {
        self.release.held_bytes() + self.decoder.as_ref().map_or(0, |decoder| decoder.kept().0)
    }

    pub(crate) fn stats(&self) -> ReceiverStats {
        let decoded = self
            .decoder
            .as_ref()
            .map(Decoder::counts)
            .unwrap_or_default();
        ReceiverStats {
            skipped: self.release.skipped(),
            unsolved: decoded.abandoned,
            garbled: decoded.malformed,
            ..self.stats
        }
    }

    /// An acknowledgement, when one is due. `rank` orders the paths, the best first, and `limit` says what a datagram
    /// holds on each; a path that has no rank is not used.
    pub(crate) fn poll_transmit<R: Ord>(
        &mut self,
        now: Instant,
        rank: impl Fn(PathId) -> Option<(R, usize)>,
    ) -> Option<Transmit> {
        if self.acks.is_empty() && self.ack_due.is_some_and(|due| due <= now) {
            self.ack_due = None;
            self.acknowledge(now, rank);
        }
        self.acks.pop()
    }

    fn acknowledge<R: Ord>(&mut self, now: Instant, rank: impl Fn(PathId) -> Option<(R, usize)>) {
        let mut best: Vec<_> = PathId::all()
            .filter(|path| self.present.contains(*path))
            .filter_map(|path| rank(path).map(|(rank, limit)| (rank, path, limit)))
            .collect();
        best.sort();
        best.truncate(ACK_PATHS);
        let mut blocks = Vec::new();
        for path in PathId::all() {
            if let Some(incoming) = &mut self.paths[path.index()]
                && std::mem::take(&mut incoming.unacknowledged)
            {
                blocks.push(incoming.block(now, path));
            }
        }
        for (_, path, limit) in best {
            let mut rest = &blocks[..];
            while !rest.is_empty() {
                let (datagram, taken) = emit_acks(rest, limit);
                if taken == 0 {
                    break;
                }
                self.acks.push(Transmit { path, datagram });
                rest = &rest[taken..];
            }
        }
    }
}

/// Bytes of a packet, for how many of them a decoder's table has places.
const PACKET: u64 = 512;

fn decoder_config(config: &Config) -> hawser_coding::Config {
    hawser_coding::Config {
        window_packets: (config.pool_limit.0 / PACKET).clamp(64, Delivered::SPAN) as usize,
        packet_bytes: MAX_PACKET,
        memory: config.pool_limit,
    }
}

impl Incoming {
    fn block(&self, now: Instant, path: PathId) -> AckBlock {
        AckBlock {
            path,
            delay: now.saturating_since(self.largest_at),
            ranges: self.arrived.ranges(),
            ecn: self.ecn,
        }
    }

    fn count(&mut self, ecn: Ecn) {
        if ecn == Ecn::Unknown {
            return;
        }
        let counts = self.ecn.get_or_insert_default();
        let count = match ecn {
            Ecn::Unknown | Ecn::NotEct => return,
            Ecn::Ect0 => &mut counts.ect0,
            Ecn::Ect1 => &mut counts.ect1,
            Ecn::Ce => &mut counts.ce,
        };
        *count = count.wrapping_add(1);
    }
}

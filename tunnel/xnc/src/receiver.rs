use crate::decoding::decoder_config;
use crate::frame::{AckBlock, EcnCounts, PacketHeader, emit_acks};
use crate::numbers::{Insert, ReceivedRanges, ReplayWindow, expand};
use crate::reorder_buffer::{Packet, ReorderBuffer};
use crate::sender::{Transmit, seed};
use crate::stats::{ReceiverStats, RejectReason};
use crate::timer::Timer;
use crate::{ACK_DELAY, Config};
use bytes::Bytes;
use hawser_coding::Decoder;
use hawser_units::{Ecn, Instant, MAX_PATHS, PathId, PathSet};
use hawser_wire::ip::mark_congestion;
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum distance of a packet or transmission number beyond the largest one received.
const MAX_JUMP: u64 = 1 << 20;

/// The number of paths that carry each acknowledgement.
const ACK_PATHS: usize = 2;

/// The interval at which a new [`Horizon`] is added.
const HORIZON_INTERVAL: Duration = Duration::from_millis(100);

/// The receiving side of a session.
#[derive(Debug)]
pub(crate) struct Receiver {
    ack_delay: Duration,
    present: PathSet,
    /// Includes removed paths: if they return, the numbers of their transmissions continue.
    paths: [Option<Incoming>; MAX_PATHS],
    largest: Option<u64>,
    replay_window: ReplayWindow,
    reorder_buffer: ReorderBuffer,
    decoder: Option<Decoder>,
    /// The time for which packets are kept for decoding.
    retention: Duration,
    horizons: VecDeque<Horizon>,
    ack_due: Option<Instant>,
    /// Acknowledgements that still have to be sent.
    acks: Vec<Transmit>,
    stats: ReceiverStats,
}

/// A group of packets and the time at which they expire.
#[derive(Debug)]
struct Horizon {
    noted: Instant,
    until: Instant,
    /// Packets with numbers below this one.
    end: u64,
}

/// The transmissions received over a path.
#[derive(Debug, Default)]
struct Incoming {
    received: ReceivedRanges,
    largest_at: Instant,
    ecn: Option<EcnCounts>,
    unacknowledged: bool,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Self {
        Receiver {
            ack_delay: ACK_DELAY,
            present: PathSet::EMPTY,
            paths: Default::default(),
            largest: None,
            replay_window: ReplayWindow::default(),
            reorder_buffer: ReorderBuffer::new(config),
            decoder: config
                .is_coded()
                .then(|| Decoder::new(decoder_config(config))),
            retention: config.expiry * 2,
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
        bytes: Bytes,
        ecn: Option<Ecn>,
    ) -> Result<(), RejectReason> {
        let incoming = self.incoming(path)?;
        let number = expand(header.transmission.into(), 16, incoming.received.largest());
        let start = expand(header.start.into(), 24, self.largest);
        let last = start + u64::from(header.count) - 1;
        if last > self.largest.map_or(0, |largest| largest + 1) + MAX_JUMP {
            return Err(RejectReason::TooFarAhead);
        }
        self.record_transmission(now, path, number, ecn)?;
        self.largest = self.largest.max(Some(last));
        self.note_horizon(now);
        // The mark passes to the first packet that the datagram delivers.
        let mut mark = ecn == Some(Ecn::Ce);
        match header.count {
            0 | 1 => self.handle_original(now, start, bytes, &mut mark),
            count => self.handle_coded(start, count, seed(path, number, start), &bytes)?,
        }
        self.deliver_decoded(now, &mut mark);
        Ok(())
    }

    fn handle_original(&mut self, now: Instant, id: u64, bytes: Bytes, mark: &mut bool) {
        // The decoder gets the bytes that were sent, because coded packets are made of these.
        if self.deliver(now, id, || bytes.clone(), false, mark)
            && let Some(decoder) = &mut self.decoder
        {
            // The decoder rejects packets that it knows, or that are too old to be useful.
            let _ = decoder.handle_original(id, &bytes);
        }
    }

    /// Handles a coded packet over `count` packets from `start` on.
    fn handle_coded(
        &mut self,
        start: u64,
        count: u8,
        seed: u64,
        bytes: &[u8],
    ) -> Result<(), RejectReason> {
        self.stats.coded += 1;
        let decoder = self.decoder.as_mut().ok_or(RejectReason::Undecodable)?;
        decoder
            .handle_coded(start, count.into(), seed, bytes)
            .map_err(|_| RejectReason::Undecodable)
    }

    fn deliver_decoded(&mut self, now: Instant, mark: &mut bool) {
        while let Some((id, bytes)) = self.decoder.as_mut().and_then(Decoder::poll_packet) {
            self.deliver(now, id, || bytes.into(), true, mark);
        }
    }

    pub(crate) fn handle_ping(
        &mut self,
        now: Instant,
        path: PathId,
        number: u64,
        ecn: Option<Ecn>,
    ) -> Result<(), RejectReason> {
        let largest = self.incoming(path)?.received.largest();
        if number > largest.unwrap_or(0).saturating_add(MAX_JUMP) {
            return Err(RejectReason::TooFarAhead);
        }
        self.record_transmission(now, path, number, ecn)
    }

    fn incoming(&mut self, path: PathId) -> Result<&mut Incoming, RejectReason> {
        let is_present = self.present.contains(path);
        self.paths[path.index()]
            .as_mut()
            .filter(|_| is_present)
            .ok_or(RejectReason::UnknownPath)
    }

    fn record_transmission(
        &mut self,
        now: Instant,
        path: PathId,
        number: u64,
        ecn: Option<Ecn>,
    ) -> Result<(), RejectReason> {
        let ack_due = now + self.ack_delay;
        match self.incoming(path)?.insert(now, number, ecn) {
            Insert::Repeated => return Err(RejectReason::Duplicate),
            Insert::New => _ = self.ack_due.get_or_insert(ack_due),
            Insert::TooOld => {}
        }
        Ok(())
    }

    /// Delivers a packet, unless it was delivered before. Returns whether it was delivered now. A
    /// mark is used up, also by a packet whose sender does not support ECN: the other packets of
    /// the path get no more than their share of the marks.
    fn deliver(
        &mut self,
        now: Instant,
        id: u64,
        bytes: impl FnOnce() -> Bytes,
        recovered: bool,
        mark: &mut bool,
    ) -> bool {
        if !self.replay_window.insert(id) {
            self.stats.duplicates += 1;
            return false;
        }
        self.stats.delivered += 1;
        self.stats.recovered += u64::from(recovered);
        let mut bytes = bytes();
        let is_marked = std::mem::take(mark) && mark_congested(&mut bytes);
        self.stats.marked += u64::from(is_marked);
        self.reorder_buffer.push(
            now,
            Packet {
                id,
                bytes,
                recovered,
            },
        );
        true
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.reorder_buffer.handle_timeout(now);
        while let Some(horizon) = self.horizons.front().filter(|horizon| horizon.until <= now) {
            if let Some(decoder) = &mut self.decoder {
                decoder.forget_before(horizon.end);
            }
            self.horizons.pop_front();
        }
    }

    /// Records that packets up to the largest number can be forgotten once the current packet has
    /// expired.
    fn note_horizon(&mut self, now: Instant) {
        let (until, end) = (
            now + self.retention,
            self.largest.map_or(0, |largest| largest + 1),
        );
        match self
            .horizons
            .back_mut()
            .filter(|horizon| now < horizon.noted + HORIZON_INTERVAL)
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

    pub(crate) fn next_timer(&self) -> Option<(Instant, Timer)> {
        let horizon = self.horizons.front().map(|horizon| horizon.until);
        let timers = [
            Timer::Acknowledgement.at(self.ack_due),
            Timer::Reordering.at(self.reorder_buffer.poll_timeout()),
            Timer::Decoding.at(horizon),
        ];
        timers.into_iter().flatten().min()
    }

    pub(crate) fn poll_packet(&mut self) -> Option<Packet> {
        self.reorder_buffer.pop()
    }

    /// Returns the cost of the packets that are kept for decoding or reordering.
    pub(crate) fn memory(&self) -> u64 {
        self.reorder_buffer.held_bytes()
            + self
                .decoder
                .as_ref()
                .map_or(0, |decoder| decoder.memory_used().0)
    }

    pub(crate) fn stats(&self) -> ReceiverStats {
        let decoded = self
            .decoder
            .as_ref()
            .map(Decoder::counts)
            .unwrap_or_default();
        ReceiverStats {
            skipped: self.reorder_buffer.skipped(),
            undecoded: decoded.abandoned,
            decoded_malformed: decoded.malformed,
            ..self.stats
        }
    }

    /// Returns an acknowledgement, if one is due. `rank` returns the rank of a path, the lowest
    /// being the best, and the maximum size of its datagrams; a path without a rank is not used.
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
        let blocks = self.take_blocks(now);
        for (_, path, limit) in best {
            let mut rest = &blocks[..];
            while !rest.is_empty() {
                let (datagram, taken) = emit_acks(rest, limit);
                if taken == 0 {
                    break;
                }
                self.acks.push(Transmit {
                    path,
                    datagram: datagram.into(),
                });
                rest = &rest[taken..];
            }
        }
    }

    /// Returns an acknowledgement for each path on which something was received since the last one.
    fn take_blocks(&mut self, now: Instant) -> Vec<AckBlock> {
        let paths = PathId::all().zip(&mut self.paths);
        let received = paths.filter_map(|(path, incoming)| {
            let incoming = incoming.as_mut()?;
            let is_due = std::mem::take(&mut incoming.unacknowledged);
            is_due.then(|| incoming.block(now, path))
        });
        received.collect()
    }
}

/// Marks a packet, unless its sender does not support ECN. Returns whether it is marked now.
fn mark_congested(packet: &mut Bytes) -> bool {
    let mut marked = packet.to_vec();
    let is_marked = mark_congestion(&mut marked);
    if is_marked {
        *packet = marked.into();
    }
    is_marked
}

impl Incoming {
    /// Records a transmission. A number that is too old cannot be acknowledged any more. Whether
    /// its packet is new is decided by the replay window.
    fn insert(&mut self, now: Instant, number: u64, ecn: Option<Ecn>) -> Insert {
        let largest = self.received.largest();
        let inserted = self.received.insert(number);
        if inserted == Insert::Repeated {
            return inserted;
        }
        if largest.is_none_or(|largest| number > largest) {
            self.largest_at = now;
        }
        self.count(ecn);
        self.unacknowledged |= inserted == Insert::New;
        inserted
    }

    fn block(&self, now: Instant, path: PathId) -> AckBlock {
        AckBlock {
            path,
            delay: now.saturating_since(self.largest_at),
            ranges: self.received.ranges(),
            ecn: self.ecn,
        }
    }

    fn count(&mut self, ecn: Option<Ecn>) {
        let Some(ecn) = ecn else {
            return;
        };
        let counts = self.ecn.get_or_insert_default();
        let count = match ecn {
            Ecn::NotEct => return,
            Ecn::Ect0 => &mut counts.ect0,
            Ecn::Ect1 => &mut counts.ect1,
            Ecn::Ce => &mut counts.ce,
        };
        *count = count.wrapping_add(1);
    }
}

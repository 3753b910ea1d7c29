use crate::config::Config;
use crate::memory::{cost, give_back};
use crate::outstanding::{Content, LossRule, Outcome};
use crate::path::{PathState, Paths, QUIC_OVERHEAD};
use crate::pool::{Fate, Hint, Pool};
use crate::scheme::{Behaviour, Candidate, Extra, Parts, Place, Recovery, View, frame_size};
use crate::stats::{Refused, SenderStats};
use hawser_units::{Instant, PathId};
use hawser_wire::xnc::{AckBlock, PacketHeader, emit_ping};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

mod outcomes;
mod queue;
mod shots;

use queue::{Queue, Waiting};

/// Bytes that a combination has more than the longest packet in it: the header, and the length of a packet.
pub const CODED_OVERHEAD: usize = PacketHeader::LEN + 2;

/// Bytes of a packet at most, whatever a path may carry: what decoders have room for.
pub(crate) const MAX_PACKET: usize = 1500;

/// A datagram to be sent over the QUIC connection of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The path.
    pub path: PathId,
    /// The datagram.
    pub datagram: Vec<u8>,
}

/// Something that people may want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nothing sent over the path is acknowledged any more: it is tried with single packets.
    Silent(PathId),
    /// The path delivers again.
    Resumed(PathId),
}

/// The sending side of a session.
#[derive(Debug)]
pub(crate) struct Sender {
    config: Config,
    parts: Parts,
    paths: Paths,
    queue: Queue,
    pool: Pool,
    /// Decided, and not yet handed out.
    planned: VecDeque<(PathId, Content)>,
    /// Lost packets to be sent again, in the order in which they were found lost.
    again: VecDeque<u64>,
    /// Ranges with losses that are to be recovered.
    shots: BTreeSet<u64>,
    events: VecDeque<Event>,
    outcomes: Vec<Outcome>,
    /// When time was handled last.
    handled_at: Instant,
    /// When a packet went either way last.
    stirred_at: Option<Instant>,
    stats: SenderStats,
}

impl Sender {
    pub(crate) fn new(config: Config) -> Self {
        let parts = Parts::of(&config);
        Sender {
            paths: Paths::default(),
            queue: Queue::default(),
            pool: Pool::new(&config, parts.reach),
            planned: VecDeque::new(),
            again: VecDeque::new(),
            shots: BTreeSet::new(),
            events: VecDeque::new(),
            outcomes: Vec::new(),
            handled_at: Instant::ZERO,
            stirred_at: None,
            stats: SenderStats::default(),
            parts,
            config,
        }
    }

    pub(crate) fn add_path(&mut self, now: Instant, path: PathId) {
        self.remove_path(now, path);
        self.paths.add(now, path, &self.config);
    }

    /// What is under way over the path counts as lost.
    pub(crate) fn remove_path(&mut self, now: Instant, path: PathId) {
        let Some(under_way) = self.paths.remove(path) else { return };
        self.outcomes.extend(under_way.map(Outcome::Lost));
        let (gone, planned) =
            self.planned.drain(..).partition::<VecDeque<_>, _>(|(planned, _)| *planned == path);
        self.planned = planned;
        // A combination counts as under way from its plan on, a copy only once it is sent.
        let combinations = gone.into_iter().map(|(_, content)| content);
        let combinations = combinations.filter(|content| matches!(content, Content::Coded { .. }));
        self.outcomes.extend(combinations.map(Outcome::Lost));
        self.settle_outcomes(now, path);
    }

    pub(crate) fn update_path(&mut self, path: PathId, state: PathState) {
        if let Some(path) = self.paths.get_mut(path) {
            path.update(state);
        }
    }

    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// What the packets cost that wait or may have to be recovered.
    pub(crate) fn memory(&self) -> u64 {
        self.queue.bytes() + self.pool.bytes()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The largest packet that every path can carry and recover; 0 without paths.
    pub(crate) fn max_packet(&self) -> usize {
        let sizes = self.paths.iter().map(|path| path.state.datagram_size.saturating_sub(CODED_OVERHEAD));
        sizes.min().unwrap_or(0).min(MAX_PACKET)
    }

    pub(crate) fn handle_packet(&mut self, now: Instant, bytes: Vec<u8>, hint: Hint) -> Result<(), Refused> {
        let largest = self.paths.iter().map(|path| path.state.datagram_size).max().unwrap_or(0);
        if !(1..=MAX_PACKET).contains(&bytes.len()) || bytes.len() + CODED_OVERHEAD > largest {
            return Err(Refused::Size);
        }
        if self.queue.bytes() + cost(&bytes) > self.config.queue_limit.0 {
            return Err(Refused::QueueFull);
        }
        self.stats.packets += 1;
        self.stir(now);
        let hint = Hint { border: hint.border && !hint.urgent, ..hint };
        let keeps_frames = matches!(self.parts.recovery, Recovery::OneShot { .. });
        self.queue.push(Waiting { bytes, hint, since: now }, keeps_frames);
        Ok(())
    }

    /// A packet goes either way: from now on it has to be known which paths deliver.
    pub(crate) fn stir(&mut self, now: Instant) {
        let rested = self.rests(now);
        self.stirred_at = Some(now);
        if rested {
            self.paths.iter_mut().for_each(|path| path.probe_soon(now, &self.config, false));
        }
    }

    fn rests(&self, now: Instant) -> bool {
        self.stirred_at.is_none_or(|at| at + self.config.probe_rest <= now)
    }

    /// Takes acknowledgements, one for a path.
    pub(crate) fn handle_acks(&mut self, now: Instant, blocks: &[AckBlock]) -> Result<(), Refused> {
        let taken = blocks.iter().map(|block| self.handle_ack(now, block)).fold(Ok(()), Result::and);
        self.handle_timeout(now);
        taken
    }

    fn handle_ack(&mut self, now: Instant, block: &AckBlock) -> Result<(), Refused> {
        let path = self.paths.get_mut(block.path).ok_or(Refused::NoPath)?;
        path.outstanding.acknowledge(now, block, &mut self.outcomes)?;
        if let Some(ecn) = block.ecn {
            let marks = &mut self.stats.paths[block.path.index()].congestion_marks;
            *marks = ecn.ce.max(*marks);
        }
        self.settle_outcomes(now, block.path);
        Ok(())
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.handled_at = now;
        let loss = self.loss_rule();
        for path in PathId::all() {
            let Some(known) = self.paths.get_mut(path) else { continue };
            known.outstanding.detect(now, loss, self.config.ack_delay, &mut self.outcomes);
            self.settle_outcomes(now, path);
            self.detect_stragglers(now, path);
        }
        self.watch_paths(now);
        self.drop_expired(now);
        self.pool.trim();
        give_back(&mut self.planned);
        give_back(&mut self.again);
    }

    /// What little is missing of a frame is recovered soon: without it the rest is in vain. So is whatever a quiet path
    /// holds up, where there is room.
    fn detect_stragglers(&mut self, now: Instant, path: PathId) {
        let (Some(patience), Some(known)) = (self.straggler_patience(), self.paths.get_mut(path)) else {
            return;
        };
        let (pool, spares_nothing) = (&self.pool, self.queue.len() == 0 && known.is_quiet(now, &self.config));
        let most = if spares_nothing { 1.0 } else { self.config.straggler_share };
        let is_worth = |id| pool.missing_of_frame(id).is_some_and(|missing| missing <= most);
        known.outstanding.detect_stragglers(now, patience, is_worth, &mut self.outcomes);
        self.settle_outcomes(now, path);
    }

    /// How much later than expected a straggler is; none where it is not looked for.
    fn straggler_patience(&self) -> Option<Duration> {
        let recovers = matches!(self.parts.recovery, Recovery::OneShot { .. });
        let is_early = matches!(self.parts.loss, LossRule::Quality(_));
        (recovers && is_early && self.pool.knows_frames()).then_some(self.config.straggler)
    }

    pub(crate) fn poll_timeout(&mut self) -> Option<Instant> {
        let patience = self.straggler_patience();
        let (expiry, loss_rule) = (self.queue.deadline(&self.config), self.loss_rule());
        let paths = self.paths.iter_mut().filter_map(|path| {
            let loss = path.outstanding.deadline(loss_rule, self.config.ack_delay);
            // One that is due and was not sent found no window: it is tried again.
            let retry = self.handled_at + self.config.probe_silent;
            let probe = if path.next_probe <= self.handled_at { retry } else { path.next_probe };
            let silence = path.silent_from(&self.config).filter(|_| !path.silent);
            let straggler =
                patience.and_then(|patience| path.outstanding.next_straggler(self.handled_at, patience));
            let quiet = patience.and(path.quiet_from(&self.config)).filter(|from| *from > self.handled_at);
            [loss, Some(probe), silence, straggler, quiet].into_iter().flatten().min()
        });
        let shots = self.shots.iter().filter_map(|number| self.pool.range(*number)?.recover_at);
        let shot = shots.filter(|at| *at > self.handled_at).min();
        paths.chain(expiry).chain(shot).min()
    }

    fn loss_rule(&self) -> LossRule {
        match self.parts.loss {
            LossRule::Quality(_) if self.queue.len() > 0 => {
                LossRule::Quality(self.config.loss_threshold_waiting)
            }
            rule => rule,
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn stats(&self) -> &SenderStats {
        &self.stats
    }

    /// An acknowledgement goes over a path, whose window it is a part of.
    pub(crate) fn count_ack(&mut self, ack: &Transmit) {
        let stats = &mut self.stats.paths[ack.path.index()];
        stats.acks += 1;
        stats.ack_bytes += ack.datagram.len() as u64;
        if let Some(path) = self.paths.get_mut(ack.path) {
            path.hand_out(ack.datagram.len());
        }
    }

    /// The next datagram that a path has window for.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.poll_planned(now)
            .or_else(|| self.poll_probe(now))
            .or_else(|| self.poll_shot(now))
            .or_else(|| self.poll_again(now))
            .or_else(|| self.poll_extra(now))
            .or_else(|| self.poll_waiting(now))
    }

    fn poll_planned(&mut self, now: Instant) -> Option<Transmit> {
        while let Some((path, content)) = self.planned.pop_front() {
            if let Some(transmit) = self.transmit(now, path, content) {
                return Some(transmit);
            }
        }
        None
    }

    fn poll_probe(&mut self, now: Instant) -> Option<Transmit> {
        let path = self.paths.iter().find(|path| path.next_probe <= now && path.fits_ping())?.id;
        self.transmit(now, path, Content::Ping)
    }

    fn poll_again(&mut self, now: Instant) -> Option<Transmit> {
        while let Some(&id) = self.again.front() {
            let Some(original) = self.pool.get(id).filter(|original| original.fate == Fate::Lost) else {
                self.again.pop_front();
                continue;
            };
            let candidate = candidate(&original.bytes, original.hint);
            let place = self.place(now, candidate);
            let path = self.first_of(place, Content::Original(id))?;
            self.again.pop_front();
            if let Some(original) = self.pool.get_mut(id) {
                original.fate = Fate::Sent;
            }
            return self.transmit(now, path, Content::Original(id));
        }
        None
    }

    fn poll_extra(&mut self, now: Instant) -> Option<Transmit> {
        let (path, content) = match self.ask(now, |behaviour, view| behaviour.extra(view))? {
            Extra::Copy { id, path } => (path, Content::Original(id)),
            Extra::Coded { start, count, path } => (path, Content::Coded { start, count }),
        };
        self.transmit(now, path, content)
    }

    fn poll_waiting(&mut self, now: Instant) -> Option<Transmit> {
        self.drop_expired(now);
        let front = self.queue.front()?;
        let is_full = self.pool.bytes() + cost(&front.bytes) > self.config.pool_limit.0;
        let place = self.place(now, candidate(&front.bytes, front.hint));
        if is_full && self.parts.recovery == Recovery::Resend {
            return None;
        }
        let path = self.first_of(place, Content::Original(self.pool.next()))?;
        if is_full {
            self.stats.given_up += self.pool.drop_first_range();
        }
        let Waiting { bytes, hint, since } = self.queue.pop()?;
        let stats = &mut self.stats.paths[path.index()];
        stats.first += 1;
        stats.first_bytes += (bytes.len() + PacketHeader::LEN) as u64;
        let id = self.pool.push(now, since, bytes, hint);
        self.emit(now, path, Content::Original(id))
    }

    fn place(&mut self, now: Instant, candidate: Candidate) -> Place {
        self.ask(now, |behaviour, view| behaviour.place(view, candidate))
    }

    /// What the scheme says to a question about how things are.
    fn ask<T>(&mut self, now: Instant, question: impl FnOnce(&mut dyn Behaviour, &View<'_>) -> T) -> T {
        let view = View {
            now,
            config: &self.config,
            paths: &self.paths,
            pool: &self.pool,
            waiting: self.queue.len(),
        };
        question(self.parts.behaviour.as_mut(), &view)
    }

    /// The first path of a place; what is to go on others is planned.
    fn first_of(&mut self, place: Place, content: Content) -> Option<PathId> {
        match place {
            Place::Wait => None,
            Place::On(path) => Some(path),
            Place::OnAll(paths) => {
                let mut paths = paths.iter();
                let first = paths.next()?;
                self.planned.extend(paths.map(|path| (path, content)));
                Some(first)
            }
        }
    }

    /// A datagram besides the first transmission of a packet; none when there is nothing to send any more.
    fn transmit(&mut self, now: Instant, path: PathId, content: Content) -> Option<Transmit> {
        let transmit = self.emit(now, path, content)?;
        let bytes = transmit.datagram.len() as u64;
        let stats = &mut self.stats.paths[path.index()];
        if content == Content::Ping {
            stats.pings += 1;
            stats.ping_bytes += bytes;
        } else {
            stats.recovery += 1;
            stats.recovery_bytes += bytes;
        }
        Some(transmit)
    }

    fn emit(&mut self, now: Instant, path: PathId, content: Content) -> Option<Transmit> {
        let rests = self.rests(now);
        let known = self.paths.get_mut(path)?;
        let number = known.outstanding.next();
        let datagram = match content {
            Content::Ping => emit_ping(number),
            Content::Original(id) => {
                let original = self.pool.get_mut(id)?;
                original.in_flight += 1;
                original.path = Some(path);
                let mut datagram = Vec::with_capacity(PacketHeader::LEN + original.bytes.len());
                datagram.extend(header(1, number, id).emit());
                datagram.extend_from_slice(&original.bytes);
                datagram
            }
            Content::Coded { start, count } => {
                let ids = start..start + u64::from(count);
                let originals = ids.map(|id| self.pool.get(id).map(|original| &original.bytes[..]));
                let originals: Vec<&[u8]> = originals.collect::<Option<_>>()?;
                let longest = originals.iter().map(|bytes| bytes.len()).max()?;
                let mut datagram = Vec::with_capacity(CODED_OVERHEAD + longest);
                datagram.extend(header(count, number, start).emit());
                hawser_coding::encode(&originals, seed(path, number, start), &mut datagram);
                datagram
            }
        };
        let under_way = known.outstanding_bytes();
        known.outstanding.push(now, content, datagram.len() as u64 + QUIC_OVERHEAD, under_way);
        known.hand_out(datagram.len());
        known.next_probe = now + known.probe_interval(&self.config, rests);
        Some(Transmit { path, datagram })
    }

    fn drop_expired(&mut self, now: Instant) {
        self.stats.expired += self.queue.drop_expired(now, &self.config);
    }

    fn watch_paths(&mut self, now: Instant) {
        let rests = self.rests(now);
        for path in self.paths.iter_mut() {
            let silent = path.silent_from(&self.config).is_some_and(|from| from <= now);
            if silent != path.silent {
                path.silent = silent;
                path.probe_soon(now, &self.config, rests);
                if silent {
                    self.stats.paths[path.id.index()].silences += 1;
                } else if self.config.scheme.is_xnc() {
                    path.outstanding.forgive();
                }
                if self.events.len() < MAX_EVENTS {
                    let event = if silent { Event::Silent } else { Event::Resumed };
                    self.events.push_back(event(path.id));
                }
            }
        }
    }
}

/// Events that wait to be polled; more are not kept.
const MAX_EVENTS: usize = 64;

fn candidate(bytes: &[u8], hint: Hint) -> Candidate {
    Candidate { size: frame_size(bytes), flow_hash: hint.flow_hash }
}

/// Numbers are cut short to what the frame has room for.
fn header(count: u8, transmission: u64, start: u64) -> PacketHeader {
    PacketHeader { count, transmission: transmission as u16, start: (start & 0x00ff_ffff) as u32 }
}

/// The seed of a combination, which both ends know.
pub(crate) fn seed(path: PathId, transmission: u64, start: u64) -> u64 {
    (u64::from(u8::from(path)) << 56) ^ (start << 24) ^ transmission
}

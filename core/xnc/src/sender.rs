use crate::config::Config;
use crate::memory::{cost, give_back};
use crate::outstanding::{Content, LossRule, Outcome};
use crate::path::{PathState, Paths};
use crate::pool::{Hint, Pool};
use crate::scheme::{Parts, Recovery};
use crate::stats::{Refused, SenderStats};
use hawser_units::{Instant, PathId};
use hawser_wire::xnc::{AckBlock, PacketHeader};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

mod outcomes;
mod queue;
mod shots;
mod transmit;

use queue::{Queue, Waiting};
pub(crate) use transmit::seed;

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
    /// Where to go on in `shots` at this time: there is nothing to send for those before.
    next_shot: Option<(Instant, u64)>,
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
            queue: Queue::new(matches!(parts.recovery, Recovery::OneShot { .. })),
            pool: Pool::new(&config, parts.reach),
            planned: VecDeque::new(),
            again: VecDeque::new(),
            shots: BTreeSet::new(),
            next_shot: None,
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
        let Some(under_way) = self.paths.remove(path) else {
            return;
        };
        self.outcomes.extend(under_way.map(Outcome::Lost));
        let (gone, planned) = self
            .planned
            .drain(..)
            .partition::<VecDeque<_>, _>(|(planned, _)| *planned == path);
        self.planned = planned;
        // A combination counts as under way from its plan on, a copy only once it is sent.
        let combinations = gone.into_iter().map(|(_, content)| content);
        let combinations = combinations.filter(|content| matches!(content, Content::Coded { .. }));
        self.outcomes.extend(combinations.map(Outcome::Lost));
        self.settle_outcomes(now, path);
    }

    pub(crate) fn update_path(&mut self, path: PathId, state: PathState) {
        self.next_shot = None;
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
        let sizes = self
            .paths
            .iter()
            .map(|path| path.state.datagram_size.saturating_sub(CODED_OVERHEAD));
        sizes.min().unwrap_or(0).min(MAX_PACKET)
    }

    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        bytes: Vec<u8>,
        hint: Hint,
    ) -> Result<(), Refused> {
        let largest = self
            .paths
            .iter()
            .map(|path| path.state.datagram_size)
            .max()
            .unwrap_or(0);
        if !(1..=MAX_PACKET).contains(&bytes.len()) || bytes.len() + CODED_OVERHEAD > largest {
            return Err(Refused::Size);
        }
        let limit = self.config.queue_limit.0;
        if cost(&bytes) > limit {
            return Err(Refused::QueueFull);
        }
        self.stats.packets += 1;
        self.stir(now);
        let hint = Hint {
            border: hint.border && !hint.urgent,
            ..hint
        };
        self.queue.push(
            Waiting {
                bytes,
                hint,
                since: now,
            },
            limit,
        );
        Ok(())
    }

    /// A packet goes either way: from now on it has to be known which paths deliver.
    pub(crate) fn stir(&mut self, now: Instant) {
        let rested = self.rests(now);
        self.stirred_at = Some(now);
        if rested {
            self.paths
                .iter_mut()
                .for_each(|path| path.probe_soon(now, &self.config, false));
        }
    }

    fn rests(&self, now: Instant) -> bool {
        self.stirred_at
            .is_none_or(|at| at + self.config.probe_rest <= now)
    }

    /// Takes acknowledgements, one for a path.
    pub(crate) fn handle_acks(&mut self, now: Instant, blocks: &[AckBlock]) -> Result<(), Refused> {
        let taken = blocks
            .iter()
            .map(|block| self.handle_ack(now, block))
            .fold(Ok(()), Result::and);
        self.handle_timeout(now);
        taken
    }

    fn handle_ack(&mut self, now: Instant, block: &AckBlock) -> Result<(), Refused> {
        let path = self.paths.get_mut(block.path).ok_or(Refused::NoPath)?;
        path.outstanding
            .acknowledge(now, block, &mut self.outcomes)?;
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
            let Some(known) = self.paths.get_mut(path) else {
                continue;
            };
            known
                .outstanding
                .detect(now, loss, self.config.ack_delay, &mut self.outcomes);
            self.settle_outcomes(now, path);
            self.detect_stragglers(now, path);
        }
        self.watch_paths(now);
        self.queue.drop_expired(now, &self.config);
        self.drop_stale_shots(now);
        self.pool.trim();
        give_back(&mut self.planned);
        give_back(&mut self.again);
    }

    /// What little is missing of a frame is recovered soon: without it the rest is in vain. So is whatever a quiet path
    /// holds up, where there is room.
    fn detect_stragglers(&mut self, now: Instant, path: PathId) {
        let (Some(patience), Some(known)) = (self.straggler_patience(), self.paths.get_mut(path))
        else {
            return;
        };
        let (pool, spares_nothing) = (
            &self.pool,
            !self.queue.is_pressed() && known.is_quiet(now, &self.config),
        );
        let most = if spares_nothing {
            1.0
        } else {
            self.config.straggler_share
        };
        let is_worth = |id| {
            pool.missing_of_frame(id)
                .is_some_and(|missing| missing <= most)
        };
        known
            .outstanding
            .detect_stragglers(now, patience, is_worth, &mut self.outcomes);
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
            let probe = if path.next_probe <= self.handled_at {
                retry
            } else {
                path.next_probe
            };
            let silence = path.silent_from(&self.config).filter(|_| !path.silent);
            let straggler = patience
                .and_then(|patience| path.outstanding.next_straggler(self.handled_at, patience));
            let quiet = patience
                .and(path.quiet_from(&self.config))
                .filter(|from| *from > self.handled_at);
            [loss, Some(probe), silence, straggler, quiet]
                .into_iter()
                .flatten()
                .min()
        });
        let shots = self
            .shots
            .iter()
            .filter_map(|number| self.pool.range(*number)?.recover_at);
        let shot = shots.filter(|at| *at > self.handled_at).min();
        paths.chain(expiry).chain(shot).min()
    }

    fn loss_rule(&self) -> LossRule {
        match self.parts.loss {
            LossRule::Quality(_) if self.queue.is_pressed() => {
                LossRule::Quality(self.config.loss_threshold_waiting)
            }
            rule => rule,
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn stats(&self) -> SenderStats {
        let queue::Counts {
            expired,
            overflowed,
            congested,
            marked,
        } = self.queue.counts();
        SenderStats {
            expired,
            overflowed,
            congested,
            marked,
            ..self.stats
        }
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

    fn watch_paths(&mut self, now: Instant) {
        let rests = self.rests(now);
        for path in self.paths.iter_mut() {
            let silent = path
                .silent_from(&self.config)
                .is_some_and(|from| from <= now);
            if silent != path.silent {
                path.silent = silent;
                path.probe_soon(now, &self.config, rests);
                if silent {
                    self.stats.paths[path.id.index()].silences += 1;
                } else if self.config.scheme.is_xnc() {
                    path.outstanding.forgive();
                }
                if self.events.len() < MAX_EVENTS {
                    let event = if silent {
                        Event::Silent
                    } else {
                        Event::Resumed
                    };
                    self.events.push_back(event(path.id));
                }
            }
        }
    }
}

/// Events that wait to be polled; more are not kept.
const MAX_EVENTS: usize = 64;

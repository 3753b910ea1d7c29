use crate::decoding::MAX_PACKET;
use crate::experiment::Scheduler;
use crate::frame::{AckBlock, PacketBuffer};
use crate::liveness::{Event, Liveness};
use crate::memory::cost;
use crate::path::{Path, PathState, Paths};
use crate::recovery::{CODED_OVERHEAD, Recovery, RecoveryMethod};
use crate::sent_packets::Hint;
use crate::sent_transmissions::{LossRule, Outcome};
use crate::stats::{RejectReason, SenderStats};
use crate::timer::Timer;
use crate::{ACK_DELAY, Config};
use bytes::Bytes;
use hawser_units::{Instant, PathId};
use std::collections::VecDeque;
use std::time::Duration;

mod queue;
#[cfg(test)]
mod tests;
mod transmit;

use queue::{Queue, QueuedPacket};
pub(crate) use transmit::seed;

/// The usual number of outcomes at once on a path that is not busy. The buffer is shrunk to it.
const USUAL_OUTCOMES: usize = 256;

/// A datagram to be sent over the QUIC connection of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The path.
    pub path: PathId,
    /// The datagram.
    pub datagram: Bytes,
}

/// The sending side of a session.
#[derive(Debug)]
pub(crate) struct Sender {
    config: Config,
    scheduler: Box<dyn Scheduler>,
    loss: LossRule,
    paths: Paths,
    queue: Queue,
    recovery: Recovery,
    events: VecDeque<Event>,
    outcomes: Vec<Outcome>,
    /// The time of the last [`Sender::handle_timeout`].
    handled_at: Instant,
    /// When the last packet was sent or received.
    last_activity: Option<Instant>,
    stats: SenderStats,
}

impl Sender {
    pub(crate) fn new(config: Config) -> Self {
        Sender {
            scheduler: (config.experiment.scheduler.new)(),
            loss: config.loss_rule(),
            paths: Paths::default(),
            queue: Queue::new(config.experiment.drop_frames),
            recovery: Recovery::new(&config),
            events: VecDeque::new(),
            outcomes: Vec::new(),
            handled_at: Instant::ZERO,
            last_activity: None,
            stats: SenderStats::default(),
            config,
        }
    }

    pub(crate) fn add_path(&mut self, now: Instant, path: PathId) {
        self.remove_path(now, path);
        self.paths.add(now, path, &self.config);
    }

    /// Removes a path. Its transmissions in flight count as lost.
    pub(crate) fn remove_path(&mut self, now: Instant, path: PathId) {
        let Some(in_flight) = self.paths.remove(path) else {
            return;
        };
        self.outcomes.extend(in_flight.map(Outcome::Lost));
        let planned = self.recovery.remove_path(path);
        self.outcomes.extend(planned.map(Outcome::Lost));
        self.apply_outcomes(now, path);
    }

    pub(crate) fn update_path(&mut self, path: PathId, state: PathState) {
        self.recovery.reconsider_shots();
        if let Some(path) = self.paths.get_mut(path) {
            path.update(state);
        }
    }

    pub(crate) fn liveness(&self, now: Instant, path: PathId) -> Option<Liveness> {
        Some(self.paths.get(path)?.liveness(now))
    }

    /// Returns the rank of a path for acknowledgements, the lowest being the best, and the maximum
    /// size of its datagrams; `None` for a path that cannot carry any yet. A path whose round-trip
    /// time is unknown comes after those whose time is known.
    pub(crate) fn rank_for_acks(
        &self,
        now: Instant,
        path: PathId,
    ) -> Option<((bool, Duration), usize)> {
        let path = self.paths.get(path)?;
        let is_silent = path.liveness(now) == Liveness::Silent;
        let rtt = path.state.rtt.smoothed;
        let rtt = if rtt.is_zero() { Duration::MAX } else { rtt };
        let size = path.state.datagram_size;
        (size > 0).then_some(((is_silent, rtt), size))
    }

    /// Returns the cost of the packets that wait, or may have to be recovered.
    pub(crate) fn memory(&self) -> u64 {
        self.queue.bytes() + self.recovery.packets().bytes()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns the size of the largest packet that every path can carry and recover; 0 without
    /// paths.
    pub(crate) fn max_packet(&self) -> usize {
        let sizes = self
            .paths
            .iter()
            .map(|path| path.state.datagram_size.saturating_sub(CODED_OVERHEAD));
        sizes.min().unwrap_or(0).min(MAX_PACKET)
    }

    /// Queues a packet of the application.
    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        bytes: impl Into<PacketBuffer>,
        hint: Hint,
    ) -> Result<(), RejectReason> {
        let bytes = bytes.into();
        self.check_packet(&bytes)?;
        self.stats.packets += 1;
        self.note_activity(now);
        let hint = Hint {
            end_of_frame: hint.end_of_frame && !hint.urgent,
            ..hint
        };
        let queued_at = now;
        let packet = QueuedPacket {
            bytes,
            hint,
            queued_at,
        };
        self.queue.push(packet, self.config.queue_limit.0);
        Ok(())
    }

    /// Rejects a packet that fits no path or not the queue.
    fn check_packet(&self, bytes: &[u8]) -> Result<(), RejectReason> {
        let largest = self.paths.largest_datagram().unwrap_or(0);
        if !(1..=MAX_PACKET).contains(&bytes.len()) || bytes.len() + CODED_OVERHEAD > largest {
            return Err(RejectReason::Size);
        }
        if cost(bytes) > self.config.queue_limit.0 {
            return Err(RejectReason::QueueFull);
        }
        Ok(())
    }

    /// Records that a packet was sent or received. From now on, the session has to know which paths
    /// deliver.
    pub(crate) fn note_activity(&mut self, now: Instant) {
        let was_idle = self.is_idle(now);
        self.last_activity = Some(now);
        if was_idle {
            self.paths
                .iter_mut()
                .for_each(|path| path.probe_soon(now, &self.config, false));
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.last_activity
            .is_none_or(|at| at + self.config.probe_rest <= now)
    }

    /// Handles acknowledgements, one block for each path.
    pub(crate) fn handle_acks(
        &mut self,
        now: Instant,
        blocks: &[AckBlock],
    ) -> Result<(), RejectReason> {
        let taken = blocks
            .iter()
            .map(|block| self.handle_ack(now, block))
            .fold(Ok(()), Result::and);
        self.handle_timeout(now);
        taken
    }

    fn handle_ack(&mut self, now: Instant, block: &AckBlock) -> Result<(), RejectReason> {
        let path = self
            .paths
            .get_mut(block.path)
            .ok_or(RejectReason::UnknownPath)?;
        path.transmissions
            .acknowledge(now, block, &mut self.outcomes)?;
        if let Some(ecn) = block.ecn {
            let marks = &mut self.stats.paths[block.path.index()].congestion_marks;
            *marks = ecn.ce.max(*marks);
        }
        self.apply_outcomes(now, block.path);
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
                .transmissions
                .detect_losses(now, loss, ACK_DELAY, &mut self.outcomes);
            self.apply_outcomes(now, path);
            self.detect_stragglers(now, path);
        }
        self.check_liveness(now);
        self.queue.drop_expired(now, &self.config);
        self.recovery.handle_timeout(now);
    }

    /// Applies the outcomes of transmissions over `path`.
    fn apply_outcomes(&mut self, now: Instant, path: PathId) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for outcome in outcomes.drain(..) {
            self.count(path, outcome);
            self.recovery.handle_outcome(now, outcome);
        }
        outcomes.shrink_to(USUAL_OUTCOMES);
        self.outcomes = outcomes;
    }

    fn count(&mut self, path: PathId, outcome: Outcome) {
        let stats = &mut self.stats.paths[path.index()];
        match outcome {
            Outcome::Arrived(_) => stats.arrived += 1,
            Outcome::ArrivedLate(_) => {
                stats.arrived += 1;
                stats.lost -= 1;
                self.stats.spurious += 1;
            }
            Outcome::Lost(_) | Outcome::Straggles(_) => stats.lost += 1,
            Outcome::Retransmit(_) => {}
        }
    }

    /// Counts late packets as lost if little of their frame is missing, because the rest of the
    /// frame is useless without them. If the path does not deliver and there is room, the share
    /// does not matter.
    fn detect_stragglers(&mut self, now: Instant, path: PathId) {
        let (Some(straggler_delay), Some(known)) =
            (self.straggler_delay(), self.paths.get_mut(path))
        else {
            return;
        };
        let is_delivering = known.liveness(now) == Liveness::Delivering;
        let has_room = !self.queue.is_backlogged() && !is_delivering;
        let max_missing = match has_room {
            true => 1.0,
            false => self.config.experiment.straggler_share,
        };
        let packets = self.recovery.packets();
        let is_worth = |id| {
            let missing = packets.missing_share_of_frame(id);
            missing.is_some_and(|missing| missing <= max_missing)
        };
        known
            .transmissions
            .detect_stragglers(now, straggler_delay, is_worth, &mut self.outcomes);
        self.apply_outcomes(now, path);
    }

    /// Returns the lateness from which a packet is a straggler; `None` if stragglers are not
    /// detected.
    fn straggler_delay(&self) -> Option<Duration> {
        let recovers = matches!(self.recovery.method(), RecoveryMethod::OneShot { .. });
        let is_early = matches!(self.loss, LossRule::Quality(_));
        let delay = self.config.experiment.straggler_delay;
        let are_lost = recovers && is_early && delay < Duration::MAX;
        (are_lost && self.recovery.packets().has_complete_frames()).then_some(delay)
    }

    pub(crate) fn next_timer(&mut self) -> Option<(Instant, Timer)> {
        let timers = [
            Timer::QueueDelay.at(self.queue.deadline(&self.config)),
            Timer::Recovery.at(self.recovery.poll_timeout(self.handled_at)),
        ];
        let (loss, straggler_delay) = (self.loss_rule(), self.straggler_delay());
        let (handled_at, config) = (self.handled_at, &self.config);
        let paths = self.paths.iter_mut();
        let paths = paths.flat_map(|path| {
            let delayed = straggler_delay.map(|delay| path.straggler_timers(handled_at, delay));
            let timers = path.timers(handled_at, loss, config);
            timers.into_iter().chain(delayed.into_iter().flatten())
        });
        paths.chain(timers).flatten().min()
    }

    fn loss_rule(&self) -> LossRule {
        match self.loss {
            LossRule::Quality(_) if self.queue.is_backlogged() => {
                LossRule::Quality(self.config.experiment.loss_threshold_waiting)
            }
            rule => rule,
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn stats(&self) -> SenderStats {
        let queue = self.queue.counts();
        let recovery = self.recovery.counts();
        SenderStats {
            expired: queue.expired,
            overflowed: queue.overflowed,
            congested: queue.congested,
            marked: queue.marked,
            given_up: recovery.given_up,
            delivered: recovery.delivered,
            lost: recovery.lost,
            recoveries: recovery.recoveries,
            confirmed_after: recovery.confirmed_after,
            ..self.stats
        }
    }

    /// Counts an acknowledgement that is sent over a path and uses its window.
    pub(crate) fn count_ack(&mut self, ack: &Transmit) {
        let stats = &mut self.stats.paths[ack.path.index()];
        stats.acks += 1;
        stats.ack_bytes += ack.datagram.len() as u64;
        if let Some(path) = self.paths.get_mut(ack.path) {
            path.hand_out(ack.datagram.len());
        }
    }

    /// Updates the liveness of the paths.
    fn check_liveness(&mut self, now: Instant) {
        let is_idle = self.is_idle(now);
        for path in self.paths.iter_mut() {
            let Some((from, to)) = path.check_liveness(now, &self.config) else {
                continue;
            };
            if to == Liveness::Silent {
                self.stats.paths[path.id.index()].silences += 1;
                path.probe_soon(now, &self.config, is_idle);
            } else if from == Liveness::Silent {
                end_silence(path, now, &self.config, is_idle);
            }
            if self.events.len() < MAX_EVENTS {
                let path = path.id;
                self.events.push_back(Event { path, from, to });
            }
        }
    }
}

/// Resets what a silence has changed. The losses during it do not predict later ones.
fn end_silence(path: &mut Path, now: Instant, config: &Config, is_idle: bool) {
    path.probe_soon(now, config, is_idle);
    if config.experiment.forgets_silence {
        path.transmissions.reset_loss();
    }
}

/// The maximum number of events that wait to be polled. Further events are dropped.
const MAX_EVENTS: usize = 64;

//! Reactions to acknowledgements and losses.

use super::Sender;
use crate::scheme::Recovery;
use crate::sent_packets::Fate;
use crate::sent_transmissions::{Content, Outcome};
use hawser_units::{Instant, PathId};

/// The usual number of outcomes at once on a path that is not busy. The buffer is shrunk to it.
const USUAL_OUTCOMES: usize = 256;

impl Sender {
    /// Applies the outcomes of transmissions over `path`.
    pub(super) fn apply_outcomes(&mut self, now: Instant, path: PathId) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for outcome in outcomes.drain(..) {
            let stats = &mut self.stats.paths[path.index()];
            match outcome {
                Outcome::Arrived(content) => {
                    stats.arrived += 1;
                    self.handle_arrived(now, content, true);
                }
                Outcome::ArrivedLate(content) => {
                    stats.arrived += 1;
                    stats.lost -= 1;
                    self.stats.spurious += 1;
                    self.handle_arrived(now, content, false);
                }
                Outcome::Lost(content) => {
                    stats.lost += 1;
                    self.handle_lost(now, content);
                }
                Outcome::Retransmit(Content::Original(id)) => self.queue_retransmission(id),
                Outcome::Retransmit(_) => {}
            }
        }
        outcomes.shrink_to(USUAL_OUTCOMES);
        self.outcomes = outcomes;
    }

    fn handle_arrived(&mut self, now: Instant, content: Content, was_in_flight: bool) {
        match content {
            Content::Original(id) => {
                if let Some(original) = self.sent_packets.get_mut(id).filter(|_| was_in_flight) {
                    original.in_flight -= 1;
                }
                self.settle_delivered(id);
                if let Some((number, range)) = self.sent_packets.range_of(id)
                    && range.shot.attempts > 0
                {
                    self.evaluate_shot(now, number);
                }
            }
            Content::Coded { start, count } => self.handle_coded_outcome(now, start, count, true),
            Content::Ping => {}
        }
    }

    pub(super) fn handle_lost(&mut self, now: Instant, content: Content) {
        let id = match content {
            Content::Original(id) => id,
            Content::Coded { start, count } => {
                return self.handle_coded_outcome(now, start, count, false);
            }
            Content::Ping => return,
        };
        let Some(original) = self.sent_packets.get_mut(id) else {
            return;
        };
        original.in_flight -= 1;
        if original.in_flight > 0 {
            return;
        }
        match (original.fate, self.parts.recovery) {
            (Fate::Recovering, _) => {
                if let Some((number, _)) = self.sent_packets.range_of(id) {
                    self.evaluate_shot(now, number);
                }
            }
            (Fate::Sent, recovery) => {
                self.stats.lost += 1;
                match recovery {
                    Recovery::None => self.give_up(id),
                    Recovery::Retransmit => self.queue_retransmission(id),
                    Recovery::OneShot { .. } => self.schedule_recovery(now, id),
                }
            }
            _ => {}
        }
    }

    pub(super) fn settle_delivered(&mut self, id: u64) {
        if self.sent_packets.settle(id, Fate::Delivered) {
            self.stats.delivered += 1;
        }
    }

    fn queue_retransmission(&mut self, id: u64) {
        if let Some(original) = self
            .sent_packets
            .get_mut(id)
            .filter(|original| original.fate == Fate::Sent)
        {
            original.fate = Fate::Lost;
            self.retransmissions.push_back(id);
        }
    }

    pub(super) fn give_up(&mut self, id: u64) {
        if self.sent_packets.settle(id, Fate::GivenUp) {
            self.stats.given_up += 1;
        }
    }
}

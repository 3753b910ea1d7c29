//! What follows from what became known of transmissions.

use super::Sender;
use crate::outstanding::{Content, Outcome};
use crate::pool::Fate;
use crate::scheme::Recovery;
use hawser_units::{Instant, PathId};

/// What becomes known at once of a path that is not busy; room for more is not kept.
const USUAL_OUTCOMES: usize = 256;

impl Sender {
    /// Draws the consequences of what became known of transmissions over `path`.
    pub(super) fn settle_outcomes(&mut self, now: Instant, path: PathId) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for outcome in outcomes.drain(..) {
            let stats = &mut self.stats.paths[path.index()];
            match outcome {
                Outcome::Arrived(content) => {
                    stats.arrived += 1;
                    self.arrived(now, content, true);
                }
                Outcome::ArrivedLate(content) => {
                    stats.arrived += 1;
                    stats.lost -= 1;
                    self.stats.spurious += 1;
                    self.arrived(now, content, false);
                }
                Outcome::Lost(content) => {
                    stats.lost += 1;
                    self.lost(now, content);
                }
                Outcome::Repeat(Content::Original(id)) => self.send_again(id),
                Outcome::Repeat(_) => {}
            }
        }
        outcomes.shrink_to(USUAL_OUTCOMES);
        self.outcomes = outcomes;
    }

    fn arrived(&mut self, now: Instant, content: Content, was_under_way: bool) {
        match content {
            Content::Original(id) => {
                if let Some(original) = self.pool.get_mut(id).filter(|_| was_under_way) {
                    original.in_flight -= 1;
                }
                self.settle_delivered(id);
                if let Some((number, range)) = self.pool.range_of(id)
                    && range.shot.fired > 0
                {
                    self.judge(now, number);
                }
            }
            Content::Coded { start, count } => self.coded_decided(now, start, count, true),
            Content::Ping => {}
        }
    }

    pub(super) fn lost(&mut self, now: Instant, content: Content) {
        let id = match content {
            Content::Original(id) => id,
            Content::Coded { start, count } => return self.coded_decided(now, start, count, false),
            Content::Ping => return,
        };
        let Some(original) = self.pool.get_mut(id) else {
            return;
        };
        original.in_flight -= 1;
        if original.in_flight > 0 {
            return;
        }
        match (original.fate, self.parts.recovery) {
            (Fate::Recovering, _) => {
                if let Some((number, _)) = self.pool.range_of(id) {
                    self.judge(now, number);
                }
            }
            (Fate::Sent, recovery) => {
                self.stats.lost += 1;
                match recovery {
                    Recovery::None => self.give_up(id),
                    Recovery::Resend => self.send_again(id),
                    Recovery::OneShot { .. } => self.mark_lost(now, id),
                }
            }
            _ => {}
        }
    }

    pub(super) fn settle_delivered(&mut self, id: u64) {
        if self.pool.settle(id, Fate::Delivered) {
            self.stats.delivered += 1;
        }
    }

    fn send_again(&mut self, id: u64) {
        if let Some(original) = self
            .pool
            .get_mut(id)
            .filter(|original| original.fate == Fate::Sent)
        {
            original.fate = Fate::Lost;
            self.again.push_back(id);
        }
    }

    pub(super) fn give_up(&mut self, id: u64) {
        if self.pool.settle(id, Fate::GivenUp) {
            self.stats.given_up += 1;
        }
    }
}

use super::Waiting;
use super::fifo::Fifo;
use crate::config::CodelSettings;
use hawser_units::{Ecn, Instant};
use std::time::Duration;

/// Controlled delay (RFC 8289, section 5): drops or marks packets of one queue, at intervals that
/// shrink, while the time that packets wait does not fall below the target.
#[derive(Debug, Clone)]
pub(crate) struct Codel {
    settings: CodelSettings,
    first_above: Option<Instant>,
    is_dropping: bool,
    drop_next: Instant,
    count: u32,
    last_count: u32,
}

/// A packet taken from the queue, and whether the delay has been too long for an interval.
struct Taken<P> {
    packet: Option<Waiting<P>>,
    ok_to_drop: bool,
}

impl Codel {
    pub(crate) fn new(settings: CodelSettings) -> Self {
        Codel {
            settings,
            first_above: None,
            is_dropping: false,
            drop_next: Instant::ZERO,
            count: 0,
            last_count: 0,
        }
    }

    /// Takes the packet of `queue` that leaves `now`, and adds the dropped ones to `dropped`.
    pub(crate) fn pop<P>(
        &mut self,
        now: Instant,
        queue: &mut Fifo<P>,
        dropped: &mut u64,
    ) -> Option<Waiting<P>> {
        let taken = self.take(now, queue);
        if self.is_dropping {
            self.keep_dropping(now, queue, taken, dropped)
        } else if taken.ok_to_drop {
            self.begin_dropping(now, queue, taken, dropped)
        } else {
            taken.packet
        }
    }

    fn keep_dropping<P>(
        &mut self,
        now: Instant,
        queue: &mut Fifo<P>,
        mut taken: Taken<P>,
        dropped: &mut u64,
    ) -> Option<Waiting<P>> {
        self.is_dropping = taken.ok_to_drop;
        while self.is_dropping && now >= self.drop_next {
            self.count = self.count.saturating_add(1);
            if self.mark(&mut taken) {
                self.drop_next = self.control_law(self.drop_next);
                break;
            }
            *dropped += 1;
            taken = self.take(now, queue);
            self.is_dropping = taken.ok_to_drop;
            if self.is_dropping {
                self.drop_next = self.control_law(self.drop_next);
            }
        }
        taken.packet
    }

    fn begin_dropping<P>(
        &mut self,
        now: Instant,
        queue: &mut Fifo<P>,
        mut taken: Taken<P>,
        dropped: &mut u64,
    ) -> Option<Waiting<P>> {
        if !self.mark(&mut taken) {
            *dropped += 1;
            taken = self.take(now, queue);
        }
        // The rate of drops that controlled the queue recently is a good first guess.
        let delta = self.count.saturating_sub(self.last_count);
        let is_recent = now.saturating_since(self.drop_next) < 16 * self.settings.interval;
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.is_dropping = true;
        self.drop_next = self.control_law(now);
        self.last_count = self.count;
        taken.packet
    }

    /// Takes the first packet of the queue, and follows how long packets have waited too long.
    fn take<P>(&mut self, now: Instant, queue: &mut Fifo<P>) -> Taken<P> {
        let packet = queue.pop();
        let is_above = packet
            .as_ref()
            .is_some_and(|packet| packet.waited(now) >= self.settings.target)
            && queue.bytes() > self.settings.mtu;
        let mut ok_to_drop = false;
        if !is_above {
            self.first_above = None;
        } else if let Some(first_above) = self.first_above {
            ok_to_drop = now >= first_above;
        } else {
            self.first_above = Some(now + self.settings.interval);
        }
        Taken { packet, ok_to_drop }
    }

    /// Marks the packet instead of dropping it, if both are able.
    fn mark<P>(&self, taken: &mut Taken<P>) -> bool {
        let packet = taken
            .packet
            .as_mut()
            .filter(|packet| self.settings.ecn && packet.ecn != Ecn::NotEct);
        packet.map(|packet| packet.is_marked = true).is_some()
    }

    fn control_law(&self, from: Instant) -> Instant {
        let interval = self.settings.interval.as_secs_f64() / f64::from(self.count.max(1)).sqrt();
        from + Duration::from_secs_f64(interval)
    }
}

#[cfg(test)]
mod rfc_8289;

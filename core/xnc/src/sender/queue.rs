//! Packets that wait for a path with window.

use crate::config::Config;
use crate::memory::{cost, give_back};
use crate::pool::Hint;
use hawser_units::Instant;
use std::collections::VecDeque;

/// A packet that was not sent yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) bytes: Vec<u8>,
    pub(super) hint: Hint,
    pub(super) since: Instant,
}

/// Urgent packets at most that go one after another while others wait.
const URGENT_IN_A_ROW: u32 = 16;

/// The packets that were not sent yet, in the order in which they came, urgent ones before the others.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    urgent: VecDeque<Waiting>,
    /// Urgent packets that were sent since another one was.
    urgent_in_a_row: u32,
    bytes: u64,
    /// The flow that told last where a frame ends, when frames are kept whole.
    framed: Option<u64>,
    /// The flow of which the frame at the head cannot be whole any more.
    doomed: Option<u64>,
    /// Whether a part of the frame at the head was sent.
    is_begun: bool,
    /// Frames that were dropped since one was sent.
    dropped_frames: u32,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.urgent.len()
    }

    /// What the packets cost.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The packet that is to be sent next.
    pub(super) fn front(&self) -> Option<&Waiting> {
        if self.is_urgent_next() { self.urgent.front() } else { self.waiting.front() }
    }

    fn is_urgent_next(&self) -> bool {
        !self.urgent.is_empty() && (self.urgent_in_a_row < URGENT_IN_A_ROW || self.waiting.is_empty())
    }

    pub(super) fn push(&mut self, waiting: Waiting, keeps_frames: bool) {
        if keeps_frames && waiting.hint.border {
            self.framed = Some(waiting.hint.flow_hash);
        }
        self.bytes += cost(&waiting.bytes);
        let queue = if waiting.hint.urgent { &mut self.urgent } else { &mut self.waiting };
        queue.push_back(waiting);
    }

    /// The packet that [`Queue::front`] names, which is sent.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        if self.is_urgent_next() {
            self.urgent_in_a_row += 1;
            return self.remove_urgent();
        }
        self.urgent_in_a_row = 0;
        let sent = self.remove_front()?;
        if self.framed == Some(sent.hint.flow_hash) {
            self.is_begun = !sent.hint.border;
            self.dropped_frames = 0;
        }
        Some(sent)
    }

    /// When a packet has waited too long.
    pub(super) fn deadline(&self, config: &Config) -> Option<Instant> {
        let urgent = self.urgent.front().map(|front| front.since + config.patience);
        urgent.into_iter().chain(self.deadline_of_waiting(config)).min()
    }

    /// When the first that is not urgent has waited too long. It is given more time when a part of its frame was sent, and
    /// when the frames before were dropped.
    fn deadline_of_waiting(&self, config: &Config) -> Option<Instant> {
        let front = self.waiting.front()?;
        let patience = match self.framed == Some(front.hint.flow_hash) {
            false => config.patience,
            true if self.is_begun => config.expiry,
            true => {
                let further = config.frame_patience_step.saturating_mul(self.dropped_frames);
                config.frame_patience.saturating_add(further).min(config.patience)
            }
        };
        Some(front.since + patience)
    }

    /// Drops what waited too long, and says how many packets these are. A frame of which a packet is dropped cannot be
    /// shown: the rest of it goes too.
    pub(super) fn drop_expired(&mut self, now: Instant, config: &Config) -> u64 {
        let mut dropped = 0;
        while self.urgent.front().is_some_and(|front| front.since + config.patience <= now) {
            self.remove_urgent();
            dropped += 1;
        }
        while let Some(Hint { border, flow_hash, .. }) = self.waiting.front().map(|front| front.hint) {
            let is_late = self.deadline_of_waiting(config).is_some_and(|deadline| deadline <= now);
            if !is_late && self.doomed != Some(flow_hash) {
                break;
            }
            if self.framed == Some(flow_hash) {
                self.doomed = (!border).then_some(flow_hash);
                self.is_begun &= !border;
                self.dropped_frames = self.dropped_frames.saturating_add(border.into());
            }
            self.remove_front();
            dropped += 1;
        }
        dropped
    }

    fn remove_urgent(&mut self) -> Option<Waiting> {
        let front = self.urgent.pop_front()?;
        self.bytes -= cost(&front.bytes);
        give_back(&mut self.urgent);
        Some(front)
    }

    fn remove_front(&mut self) -> Option<Waiting> {
        let front = self.waiting.pop_front()?;
        self.bytes -= cost(&front.bytes);
        give_back(&mut self.waiting);
        Some(front)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const FLOW: u64 = 7;

    /// Frames of three packets that came at once.
    fn queue(frames: u32) -> Queue {
        let mut queue = Queue::default();
        for index in 0..3 * frames {
            let hint = Hint { border: index % 3 == 2, flow_hash: FLOW, ..Hint::default() };
            let since = Instant::ZERO + index / 3 * Duration::from_millis(33);
            queue.push(Waiting { bytes: vec![0; 10], hint, since }, true);
        }
        queue
    }

    fn config() -> Config {
        Config {
            frame_patience: Duration::from_millis(60),
            frame_patience_step: Duration::from_millis(30),
            patience: Duration::from_millis(100),
            expiry: Duration::from_millis(300),
            ..Config::default()
        }
    }

    #[test]
    fn a_frame_goes_as_a_whole() {
        let mut queue = queue(3);
        let late = queue.deadline(&config()).unwrap();
        assert_eq!(late, Instant::ZERO + Duration::from_millis(60));
        assert_eq!(queue.drop_expired(late, &config()), 3);
        assert_eq!((queue.len(), queue.bytes()), (6, 6 * cost(&[0; 10])));
    }

    #[test]
    fn the_frame_after_a_dropped_one_may_wait_longer() {
        let mut queue = queue(6);
        let mut waits = Vec::new();
        while let Some(late) = queue.deadline(&config()) {
            let since = queue.front().unwrap().since;
            waits.push(late.saturating_since(since).as_millis());
            queue.drop_expired(late, &config());
            if waits.len() == 4 {
                queue.pop();
                queue.pop();
                queue.pop();
            }
        }
        assert_eq!(waits, [60, 90, 100, 100, 60]);
    }

    #[test]
    fn a_frame_that_was_begun_is_given_more_time() {
        let mut queue = queue(2);
        queue.pop();
        assert_eq!(queue.drop_expired(Instant::ZERO + Duration::from_millis(299), &config()), 0);
        assert_eq!(queue.drop_expired(Instant::ZERO + Duration::from_millis(300), &config()), 5);
        assert_eq!(queue.deadline(&config()), None);
    }

    fn push_urgent(queue: &mut Queue, ms: u64) {
        let hint = Hint { urgent: true, flow_hash: FLOW, ..Hint::default() };
        queue.push(
            Waiting { bytes: vec![0; 10], hint, since: Instant::ZERO + Duration::from_millis(ms) },
            true,
        );
    }

    #[test]
    fn urgent_packets_go_first_and_leave_the_others_a_little() {
        let mut queue = queue(1);
        queue.pop();
        (0..40).for_each(|ms| push_urgent(&mut queue, ms));
        let order: Vec<Waiting> = std::iter::from_fn(|| queue.pop()).collect();
        let of_others: Vec<usize> = (0..42).filter(|index| !order[*index].hint.urgent).collect();
        assert_eq!(of_others, [16, 33]);
        assert!(order.iter().filter(|waiting| waiting.hint.urgent).is_sorted_by_key(|waiting| waiting.since));
        assert_eq!((queue.len(), queue.bytes()), (0, 0));
    }

    #[test]
    fn urgent_packets_expire_and_do_not_go_with_a_frame() {
        let mut queue = queue(1);
        push_urgent(&mut queue, 0);
        push_urgent(&mut queue, 30);
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        assert_eq!(queue.drop_expired(at(60), &config()), 3, "the frame");
        assert_eq!(queue.deadline(&config()), Some(at(100)));
        assert_eq!(queue.drop_expired(at(100), &config()), 1);
        assert_eq!(queue.front().unwrap().since, at(30));
    }

    #[test]
    fn the_packets_of_others_do_not_go_with_a_frame() {
        let mut queue = queue(1);
        let other = Waiting {
            bytes: vec![0],
            hint: Hint::default(),
            since: Instant::ZERO + Duration::from_millis(50),
        };
        queue.push(other, true);
        assert_eq!(queue.drop_expired(Instant::ZERO + Duration::from_millis(100), &config()), 3);
        assert_eq!(queue.front().unwrap().hint.flow_hash, 0);
        assert_eq!(queue.deadline(&config()), Some(Instant::ZERO + Duration::from_millis(150)));
    }
}

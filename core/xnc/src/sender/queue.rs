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

/// The packets that were not sent yet, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
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
        self.waiting.len()
    }

    /// What the packets cost.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn front(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    pub(super) fn push(&mut self, waiting: Waiting, keeps_frames: bool) {
        if keeps_frames && waiting.hint.border {
            self.framed = Some(waiting.hint.flow_hash);
        }
        self.bytes += cost(&waiting.bytes);
        self.waiting.push_back(waiting);
    }

    /// The packet at the head, which is sent.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let sent = self.remove_front()?;
        if self.framed == Some(sent.hint.flow_hash) {
            self.is_begun = !sent.hint.border;
            self.dropped_frames = 0;
        }
        Some(sent)
    }

    /// When the packet at the head has waited too long. It is given more time when a part of its frame was sent, and when
    /// the frames before were dropped.
    pub(super) fn deadline(&self, config: &Config) -> Option<Instant> {
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
        while let Some(Hint { border, flow_hash }) = self.waiting.front().map(|front| front.hint) {
            let is_late = self.deadline(config).is_some_and(|deadline| deadline <= now);
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
            let hint = Hint { border: index % 3 == 2, flow_hash: FLOW };
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

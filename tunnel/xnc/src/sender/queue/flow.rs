//! The waiting packets of one flow.

use super::QueuedPacket;
use super::codel::Codel;
use super::l4s;
use crate::Config;
use crate::memory::{cost, shrink_if_sparse};
use hawser_units::{Ecn, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// The time without packets after which a flow is forgotten, and without an end of a frame after
/// which it is no longer live.
pub(super) const MEMORY: Duration = Duration::from_secs(2);

/// The packets of a flow in order of arrival, and the state of its frames.
#[derive(Debug)]
pub(super) struct Flow {
    waiting: VecDeque<QueuedPacket>,
    /// The cost of the packets.
    bytes: u64,
    /// Bytes that the flow may still send in its turn.
    pub(super) deficit: i64,
    /// Whether the flow is in the round robin of its class.
    pub(super) is_listed: bool,
    /// The length class under which the flow is listed, 0 if it is not.
    pub(super) sorted_class: u32,
    codel: Codel,
    used_at: Instant,
    /// When the last end of a frame arrived; `None` if the flow is not live.
    last_frame_end: Option<Instant>,
    /// Whether a frame is dropped as a whole when a part of it is dropped.
    drops_whole_frames: bool,
    /// Whether a part of the frame at the head was dropped.
    is_incomplete: bool,
    /// Whether a part of the frame at the head was sent.
    is_partly_sent: bool,
    /// The number of frames dropped since the last one was sent.
    dropped_frames: u32,
}

impl Flow {
    pub(super) fn new(now: Instant, drops_whole_frames: bool) -> Self {
        Flow {
            waiting: VecDeque::new(),
            bytes: 0,
            deficit: 0,
            is_listed: false,
            sorted_class: 0,
            codel: Codel::default(),
            used_at: now,
            last_frame_end: None,
            drops_whole_frames,
            is_incomplete: false,
            is_partly_sent: false,
            dropped_frames: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the class of the queue's length, 0 if it is empty. The lengths in a class differ by
    /// less than a factor of two.
    pub(super) fn length_class(&self) -> u32 {
        u64::BITS - self.bytes.leading_zeros()
    }

    pub(super) fn front(&self) -> Option<&QueuedPacket> {
        self.waiting.front()
    }

    /// Returns whether ends of frames were marked recently.
    pub(super) fn is_live(&self) -> bool {
        self.last_frame_end.is_some()
    }

    /// Returns whether the flow was unused for so long that it can be forgotten.
    pub(super) fn is_unused(&self, now: Instant) -> bool {
        self.used_at + MEMORY <= now
    }

    /// Updates the state of frames for a packet that is about to be pushed, and returns whether the
    /// flow is live.
    pub(super) fn note_frame_end(&mut self, waiting: &QueuedPacket) -> bool {
        let now = waiting.queued_at;
        if waiting.hint.end_of_frame {
            self.last_frame_end = Some(now);
        } else if self.last_frame_end.is_some_and(|at| at + MEMORY <= now) {
            (
                self.last_frame_end,
                self.is_incomplete,
                self.is_partly_sent,
                self.dropped_frames,
            ) = (None, false, false, 0);
        }
        self.is_live()
    }

    pub(super) fn push(&mut self, waiting: QueuedPacket) {
        self.used_at = waiting.queued_at;
        self.bytes += cost(&waiting.bytes);
        self.waiting.push_back(waiting);
    }

    /// Returns whether the packet at the head is dropped or marked: by CoDel, or above the threshold
    /// of L4S. Instead of CoDel, live flows have a maximum queueing delay for frames.
    pub(super) fn is_congested(&mut self, now: Instant, config: &Config) -> bool {
        let is_live = self.is_live();
        let Some(front) = self.waiting.front() else {
            return false;
        };
        if front.hint.ecn == Ecn::Ect1 {
            return l4s::is_congested(front, now, self.bytes);
        }
        if is_live {
            return false;
        }
        self.codel.should_drop(
            now,
            now.saturating_since(front.queued_at),
            self.bytes,
            config,
        )
    }

    /// Removes the packet at the head in order to send it.
    pub(super) fn send(&mut self) -> Option<QueuedPacket> {
        let sent = self.remove_front()?;
        self.deficit -= sent.bytes.len() as i64;
        if self.has_frames() {
            self.is_partly_sent = !sent.hint.end_of_frame;
            self.dropped_frames = 0;
        }
        Some(sent)
    }

    /// Drops the packet at the head. The rest of its frame is dropped later.
    pub(super) fn drop_front(&mut self) {
        let Some(gone) = self.remove_front() else {
            return;
        };
        if self.has_frames() {
            let is_last = gone.hint.end_of_frame;
            self.is_incomplete = !is_last;
            self.is_partly_sent &= !is_last;
            self.dropped_frames = self.dropped_frames.saturating_add(is_last.into());
        }
    }

    /// Drops packets that waited too long. A frame that lacks a packet cannot be shown, so the rest
    /// of it is dropped too.
    pub(super) fn drop_expired(&mut self, now: Instant, config: &Config) {
        while self.has_expired(now, config) {
            self.drop_front();
        }
    }

    /// Returns whether the packet at the head waited too long, or belongs to a frame of which a
    /// part was dropped.
    pub(super) fn has_expired(&self, now: Instant, config: &Config) -> bool {
        self.deadline(config)
            .is_some_and(|deadline| deadline <= now || self.is_incomplete)
    }

    /// Returns when the packet at the head will have waited too long. It may wait longer if a part
    /// of its frame was sent, or if the previous frames were dropped.
    pub(super) fn deadline(&self, config: &Config) -> Option<Instant> {
        let front = self.waiting.front()?;
        let max_delay = match self.has_frames() {
            false => config.max_queue_delay,
            true if self.is_partly_sent => config.expiry,
            true => {
                let further = config
                    .experiment
                    .frame_queue_delay_step
                    .saturating_mul(self.dropped_frames);
                config
                    .experiment
                    .max_frame_queue_delay
                    .saturating_add(further)
                    .min(config.max_queue_delay)
            }
        };
        Some(front.queued_at + max_delay)
    }

    fn has_frames(&self) -> bool {
        self.drops_whole_frames && self.is_live()
    }

    fn remove_front(&mut self) -> Option<QueuedPacket> {
        let front = self.waiting.pop_front()?;
        self.bytes -= cost(&front.bytes);
        shrink_if_sparse(&mut self.waiting);
        if self.waiting.is_empty() {
            self.codel.reset();
        }
        Some(front)
    }
}

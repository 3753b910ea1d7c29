//! The packets of one flow that wait.

use super::Waiting;
use super::codel::Codel;
use crate::config::Config;
use crate::memory::{cost, give_back};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// After how long without a packet a flow is forgotten, and without the end of a frame, that it is a video.
pub(super) const MEMORY: Duration = Duration::from_secs(2);

/// The packets of a flow in the order in which they came, and what is known of its frames.
#[derive(Debug)]
pub(super) struct Flow {
    waiting: VecDeque<Waiting>,
    /// What they cost.
    bytes: u64,
    /// Bytes that may be sent before the next flow has its turn.
    pub(super) deficit: i64,
    /// Whether it stands in one of the lists of its class.
    pub(super) is_listed: bool,
    /// Where it stands among the flows by their length; 0: nowhere.
    pub(super) sorted_class: u32,
    codel: Codel,
    used_at: Instant,
    /// When the last end of a frame came, as long as it is a video.
    framed_at: Option<Instant>,
    /// Of a frame of which a part is dropped, all is.
    keeps_frames: bool,
    /// The frame at the head cannot be whole any more.
    is_doomed: bool,
    /// A part of the frame at the head was sent.
    is_begun: bool,
    /// Frames that were dropped since one was sent.
    dropped_frames: u32,
}

impl Flow {
    pub(super) fn new(now: Instant, keeps_frames: bool) -> Self {
        Flow {
            waiting: VecDeque::new(),
            bytes: 0,
            deficit: 0,
            is_listed: false,
            sorted_class: 0,
            codel: Codel::default(),
            used_at: now,
            framed_at: None,
            keeps_frames,
            is_doomed: false,
            is_begun: false,
            dropped_frames: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How long its queue is: flows of one class differ by less than a factor of two. 0 when nothing waits.
    pub(super) fn class(&self) -> u32 {
        u64::BITS - self.bytes.leading_zeros()
    }

    pub(super) fn front(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// Whether it lately told where frames end.
    pub(super) fn is_live(&self) -> bool {
        self.framed_at.is_some()
    }

    /// Whether nothing came for so long that nothing need be remembered.
    pub(super) fn is_unused(&self, now: Instant) -> bool {
        self.used_at + MEMORY <= now
    }

    /// Takes note of the frames that a packet tells of before it is pushed, and says whether the flow is live from then on.
    pub(super) fn tells(&mut self, waiting: &Waiting) -> bool {
        let now = waiting.since;
        if waiting.hint.border {
            self.framed_at = Some(now);
        } else if self.framed_at.is_some_and(|at| at + MEMORY <= now) {
            (
                self.framed_at,
                self.is_doomed,
                self.is_begun,
                self.dropped_frames,
            ) = (None, false, false, 0);
        }
        self.is_live()
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.used_at = waiting.since;
        self.bytes += cost(&waiting.bytes);
        self.waiting.push_back(waiting);
    }

    /// Whether the head is to be dropped, or marked, for the flow to send less. A video's frames have a patience instead.
    pub(super) fn is_congested(&mut self, now: Instant, config: &Config) -> bool {
        let Some(front) = self.waiting.front().filter(|_| !self.is_live()) else {
            return false;
        };
        self.codel
            .is_to_drop(now, now.saturating_since(front.since), self.bytes, config)
    }

    /// The head, which is sent.
    pub(super) fn send(&mut self) -> Option<Waiting> {
        let sent = self.remove_front()?;
        self.deficit -= sent.bytes.len() as i64;
        if self.has_frames() {
            self.is_begun = !sent.hint.border;
            self.dropped_frames = 0;
        }
        Some(sent)
    }

    /// The head, which is dropped; with it goes what is left of its frame, sooner or later.
    pub(super) fn drop_front(&mut self) {
        let Some(gone) = self.remove_front() else {
            return;
        };
        if self.has_frames() {
            let is_last = gone.hint.border;
            self.is_doomed = !is_last;
            self.is_begun &= !is_last;
            self.dropped_frames = self.dropped_frames.saturating_add(is_last.into());
        }
    }

    /// Drops what waited too long. A frame of which a packet is dropped cannot be shown: the rest of it goes too.
    pub(super) fn drop_expired(&mut self, now: Instant, config: &Config) {
        while self.has_expired(now, config) {
            self.drop_front();
        }
    }

    /// Whether the head has waited too long, or is of a frame of which a part was dropped.
    pub(super) fn has_expired(&self, now: Instant, config: &Config) -> bool {
        self.deadline(config)
            .is_some_and(|deadline| deadline <= now || self.is_doomed)
    }

    /// When the head has waited too long. It is given more time when a part of its frame was sent, and when the frames before
    /// were dropped.
    pub(super) fn deadline(&self, config: &Config) -> Option<Instant> {
        let front = self.waiting.front()?;
        let patience = match self.has_frames() {
            false => config.patience,
            true if self.is_begun => config.expiry,
            true => {
                let further = config
                    .frame_patience_step
                    .saturating_mul(self.dropped_frames);
                config
                    .frame_patience
                    .saturating_add(further)
                    .min(config.patience)
            }
        };
        Some(front.since + patience)
    }

    fn has_frames(&self) -> bool {
        self.keeps_frames && self.is_live()
    }

    fn remove_front(&mut self) -> Option<Waiting> {
        let front = self.waiting.pop_front()?;
        self.bytes -= cost(&front.bytes);
        give_back(&mut self.waiting);
        if self.waiting.is_empty() {
            self.codel.rest();
        }
        Some(front)
    }
}

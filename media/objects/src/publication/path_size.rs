//! The length of the datagrams that the path to a viewer carries, estimated from the arrivals of each frame.
//!
//! A path whose MTU is too small drops long datagrams silently. Other losses do not depend on the length. So a
//! path counts as narrow if in many frames longer datagrams were lost than any that arrived. A false detection
//! costs little: datagrams become shorter by a few bytes only.

use crate::sender::Outcome;
use hawser_packets::media::{DEFAULT_DATAGRAM, PacketId};
use std::collections::BTreeMap;

/// The least length to which full datagrams are shortened, bytes.
const LEAST_DATAGRAM: usize = 576;

/// The length by which they are shortened at a time, unless one of a greater length has arrived.
const STEP: usize = 64;

/// The number of frames that are compared, and of those among them that miss long datagrams.
const FRAMES: usize = 64;
const CUT_FRAMES: usize = 12;

/// The number of reports without any arrival, and of lost datagrams, after which the path of a new viewer carries
/// no full datagram. Few are sent then, because nothing answers.
const EMPTY_REPORTS: u32 = 3;
const LOST: u64 = 3;

/// The length of the datagrams that the path to one viewer carries.
#[derive(Debug)]
pub(super) struct PathSize {
    datagram: usize,
    /// The lengths that arrived and were lost of the newest frames, by group.
    frames: BTreeMap<u32, Lengths>,
    /// The track of sound, whose short datagrams and numbers of groups say nothing of frames.
    left_out: Option<u32>,
    has_arrived: bool,
    empty_reports: u32,
}

/// The lengths of the longest datagrams of a frame that arrived and that were lost, 0 if there were none.
#[derive(Debug, Clone, Copy, Default)]
struct Lengths {
    arrived: usize,
    lost: usize,
}

impl PathSize {
    pub(super) fn new() -> Self {
        PathSize {
            datagram: DEFAULT_DATAGRAM,
            frames: BTreeMap::new(),
            left_out: None,
            has_arrived: false,
            empty_reports: 0,
        }
    }

    /// Leaves out the datagrams of a track.
    pub(super) const fn leave_out(&mut self, alias: Option<u32>) {
        self.left_out = alias;
    }

    /// Returns the estimated length of the longest datagram that the path carries.
    pub(super) fn datagram(&self) -> usize {
        self.datagram
    }

    /// Processes the results of a report. `lost` is the number of all datagrams that were lost so far.
    pub(super) fn handle(&mut self, outcome: &Outcome, lost: u64) {
        let is_of_frame = |id: &PacketId| Some(id.object.alias) != self.left_out;
        for packet in outcome.acknowledged.iter().filter(|p| is_of_frame(&p.id)) {
            let frame = self.frames.entry(packet.id.object.group).or_default();
            frame.arrived = frame.arrived.max(packet.size.0 as usize);
            self.has_arrived = true;
        }
        for packet in outcome.lost.iter().filter(|p| is_of_frame(&p.id)) {
            let length = packet.size.0 as usize;
            // Packets from before the last change are no evidence.
            if length <= self.datagram {
                let frame = self.frames.entry(packet.id.object.group).or_default();
                frame.lost = frame.lost.max(length);
            }
        }
        while self.frames.len() > FRAMES {
            self.frames.pop_first();
        }
        if !self.has_arrived {
            self.empty_reports += 1;
            if self.empty_reports >= EMPTY_REPORTS && lost >= LOST {
                self.shorten_to(LEAST_DATAGRAM);
            }
            return;
        }
        let lengths = || self.frames.values();
        let longest = lengths().map(|frame| frame.arrived).max().unwrap_or(0);
        let is_cut = |frame: &&Lengths| frame.lost > longest;
        if lengths().filter(is_cut).count() >= CUT_FRAMES {
            self.shorten_to(longest.max(self.datagram - STEP));
        }
    }

    fn shorten_to(&mut self, datagram: usize) {
        self.datagram = datagram.clamp(LEAST_DATAGRAM, self.datagram);
        self.frames.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender::{Acknowledged, Lost};
    use hawser_packets::media::ObjectId;
    use hawser_units::{ByteSize, Ecn, Instant};

    /// Returns the report on one frame, if the path carries datagrams for which `arrives` is true.
    fn outcome(group: u32, lengths: &[usize], arrives: impl Fn(usize) -> bool) -> Outcome {
        let mut outcome = Outcome::default();
        for (index, length) in (0..).zip(lengths) {
            let object = ObjectId {
                alias: 0,
                group,
                object: 0,
                layer: 0,
            };
            let (id, size) = (PacketId { object, index }, ByteSize(*length as u64));
            let sent = Instant::ZERO;
            if arrives(*length) {
                outcome.acknowledged.push(Acknowledged {
                    id,
                    number: 0,
                    size,
                    sent,
                    arrived: None,
                    ecn: Ecn::Ect1,
                    is_repeated: false,
                });
            } else {
                outcome.lost.push(Lost {
                    id,
                    size,
                    sent,
                    by_timeout: false,
                });
            }
        }
        outcome
    }

    #[test]
    fn datagrams_are_shortened_to_what_the_path_carries() {
        for carried in [1192, 1100, 900, 600] {
            let mut path = PathSize::new();
            for group in 0..400 {
                let full = path.datagram();
                let lengths = [full, full - 8, full - 40, 300];
                path.handle(&outcome(group, &lengths, |length| length <= carried), 0);
            }
            assert!(path.datagram() <= carried, "{carried}");
            assert!(path.datagram() + STEP > carried, "{carried}");
        }
    }

    #[test]
    fn losses_that_do_not_know_lengths_shorten_nothing() {
        let mut path = PathSize::new();
        for group in 30..1030 {
            // Outages of thirty frames, then full queues that leave a short datagram of most frames.
            let arrives = |length: usize| match group % 60 {
                0..30 => false,
                phase => phase % 8 == 0 || length == 400,
            };
            path.handle(&outcome(group, &[1200, 1180, 400], arrives), 500);
        }
        assert_eq!(path.datagram(), DEFAULT_DATAGRAM);
    }

    #[test]
    fn a_path_that_has_carried_nothing_gets_the_shortest_datagrams() {
        let mut path = PathSize::new();
        for lost in [0, 100] {
            path.handle(&Outcome::default(), lost);
            assert_eq!(path.datagram(), DEFAULT_DATAGRAM);
        }
        path.handle(&Outcome::default(), 100);
        assert_eq!(path.datagram(), LEAST_DATAGRAM);
    }
}

//! The frames, as a viewer sees them.

use super::clip::FPS;
use super::picture::{self, Received};
use super::rtp::{assemble, timestamp};
use super::stream::{Arrived, Sent, digest};
use crate::experiments::cellfusion::{REORDERING_WAIT, play};
use anyhow::{Context, Result};
use hawser_qoe::{Qoe, Window, measure};
use hawser_units::{ByteSize, Instant};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Earlier than its first frame tells no camera sends a frame.
const EARLY: Duration = Duration::from_secs(1);

/// A frame of the video.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Frame {
    /// When the camera sent its first packet.
    pub(super) captured: Instant,
    /// Encoded, with the headers of RTP.
    pub(super) size: ByteSize,
    /// When the first of its packets arrived.
    pub(super) first: Option<Instant>,
    /// When the last of them did.
    pub(super) complete: Option<Instant>,
    /// When it is shown by a player that waits for whole frames, as the simulation's does.
    pub(super) shown: Option<Instant>,
    /// When it goes to the decoder, whatever is there of it; [`Instant::MAX`] if nothing further comes.
    pub(super) turn: Instant,
    /// How like what was filmed the decoder's picture is (SSIM); none if there was no picture.
    pub(super) likeness: Option<f64>,
}

/// What a viewer saw, and what became of packets.
pub(super) struct View {
    pub(super) frames: Vec<Frame>,
    /// When each packet was sent, and when it arrived.
    pub(super) packets: Vec<(Instant, Option<Instant>)>,
    /// Packets that arrived and had not been sent.
    pub(super) strange: usize,
    /// Packets dropped at the viewer's own socket.
    pub(super) overflow: u32,
}

impl View {
    /// What comes out of one route, before it is decoded.
    pub(super) fn of(sent: &[Sent], arrived: &Arrived) -> Self {
        let packets: Vec<_> = sent
            .iter()
            .map(|sent| (sent.at, arrived.at.get(&digest(&sent.bytes)).copied()))
            .collect();
        let mut rest = &packets[..];
        let frame = |sent: &[Sent]| {
            let (packets, further) = rest.split_at(sent.len());
            rest = further;
            let arrivals: Option<Vec<Instant>> = packets.iter().map(|packet| packet.1).collect();
            Frame {
                captured: sent[0].at,
                size: ByteSize(sent.iter().map(|packet| packet.bytes.len() as u64).sum()),
                first: packets.iter().filter_map(|packet| packet.1).min(),
                complete: arrivals.and_then(|arrivals| arrivals.into_iter().max()),
                shown: None,
                turn: Instant::MAX,
                likeness: None,
            }
        };
        let mut frames: Vec<Frame> = by_frame(sent).map(frame).collect();
        take_turns(&mut frames);
        let complete: Vec<Option<Instant>> = frames.iter().map(|frame| frame.complete).collect();
        for (frame, shown) in frames.iter_mut().zip(play(&complete)) {
            frame.shown = shown;
        }
        let found = packets.iter().filter(|packet| packet.1.is_some()).count();
        View {
            frames,
            strange: arrived.at.len() - found,
            overflow: arrived.overflow,
            packets,
        }
    }

    /// Decodes what was there of each frame when its turn came.
    pub(super) fn decode(&mut self, sent: &[Sent], folder: &Path) -> Result<()> {
        let (mut units, mut received) = (Vec::new(), Vec::new());
        let mut rest = &self.packets[..];
        for (frame, sent) in self.frames.iter().zip(by_frame(sent)) {
            let (packets, further) = rest.split_at(sent.len());
            rest = further;
            units.push(assemble(sent.iter().map(|packet| &packet.bytes[..]))?);
            let is_there = |at: Option<Instant>| {
                at.is_some_and(|at| at <= frame.turn && frame.turn < Instant::MAX)
            };
            let part = sent
                .iter()
                .zip(packets)
                .filter(|(_, packet)| is_there(packet.1));
            received.push(if is_there(frame.complete) {
                Received::Whole
            } else {
                match assemble(part.map(|(packet, _)| &packet.bytes[..]))?.bytes {
                    bytes if bytes.is_empty() => Received::Nothing,
                    bytes => Received::Part(bytes),
                }
            });
        }
        let likeness = picture::likeness(&units, &received, folder)?;
        for (frame, likeness) in self.frames.iter_mut().zip(likeness) {
            frame.likeness = likeness;
        }
        Ok(())
    }

    /// How much later than due a share of frames was sent at most, when the earliest one was in time.
    pub(super) fn camera_lateness(&self, share: f64) -> Duration {
        let first = self
            .frames
            .first()
            .map_or(Instant::ZERO, |frame| frame.captured);
        let offset = |(number, frame): (u64, &Frame)| {
            let due = Duration::from_nanos(number * 1_000_000_000 / FPS);
            // The first frame is sent at once and later ones may come a little early.
            (frame.captured + EARLY).saturating_since(first + due)
        };
        let mut offsets: Vec<Duration> = (0..).zip(&self.frames).map(offset).collect();
        offsets.sort();
        let rank = (share * offsets.len() as f64).ceil() as usize;
        let earliest = offsets.first().copied().unwrap_or_default();
        offsets
            .get(rank.max(1) - 1)
            .map_or(Duration::ZERO, |offset| offset.saturating_sub(earliest))
    }

    /// Writes every frame.
    pub(super) fn write(&self, path: &Path, began: Instant) -> Result<()> {
        let seconds = |at: Instant| (at.as_nanos() as f64 - began.as_nanos() as f64) / 1e9;
        let or_nothing =
            |at: Option<Instant>| at.map_or_else(String::new, |at| format!("{:.6}", seconds(at)));
        let mut text = "captured_s,bytes,complete_s,shown_s,picture_s,ssim\n".to_owned();
        for frame in &self.frames {
            let likeness = frame
                .likeness
                .map_or_else(String::new, |likeness| format!("{likeness:.6}"));
            let (captured, size) = (seconds(frame.captured), frame.size.0);
            let [complete, shown, picture] =
                [frame.complete, frame.shown, frame.pictured()].map(or_nothing);
            writeln!(
                text,
                "{captured:.6},{size},{complete},{shown},{picture},{likeness}"
            )?;
        }
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// What it is like to watch whole frames.
    pub(super) fn qoe(&self, window: Window) -> Qoe {
        self.measure(window, |frame| frame.shown)
    }

    /// What it is like to watch every picture that the decoder makes, whatever is in it.
    pub(super) fn qoe_of_pictures(&self, window: Window) -> Qoe {
        self.measure(window, Frame::pictured)
    }

    fn measure(&self, window: Window, shown: impl Fn(&Frame) -> Option<Instant>) -> Qoe {
        let shown = |frame: &Frame| {
            Some(hawser_qoe::Frame {
                captured: frame.captured,
                decoded: shown(frame)?,
                size: frame.size,
            })
        };
        measure(
            &self.frames.iter().filter_map(shown).collect::<Vec<_>>(),
            window,
        )
    }
}

impl Frame {
    /// When the decoder made a picture of it.
    pub(super) fn pictured(&self) -> Option<Instant> {
        self.likeness.map(|_| self.turn)
    }
}

/// Frames go to the decoder in order, each when it is complete. When packets of a later frame have waited for
/// [`REORDERING_WAIT`], what is missing is given up.
fn take_turns(frames: &mut [Frame]) {
    let mut later = Instant::MAX;
    for frame in frames.iter_mut().rev() {
        let given_up = later + REORDERING_WAIT;
        frame.turn = frame
            .complete
            .map_or(given_up, |complete| complete.min(given_up));
        later = later.min(frame.first.unwrap_or(Instant::MAX));
    }
    let mut last = Instant::ZERO;
    for frame in frames {
        last = last.max(frame.turn);
        frame.turn = last;
    }
}

fn by_frame(sent: &[Sent]) -> impl Iterator<Item = &[Sent]> {
    sent.chunk_by(|one, next| timestamp(&one.bytes) == timestamp(&next.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// A packet of the frame captured so many ms after the first.
    fn packet(frame_ms: u64, number: u8) -> Sent {
        let stamp = u32::try_from(frame_ms * 90).unwrap().to_be_bytes();
        let bytes = [
            &[0x80, 96, 0, number],
            &stamp[..],
            &[0, 0, 0, 0, 0x41, number],
        ]
        .concat();
        Sent {
            at: ms(frame_ms + u64::from(number)),
            bytes,
        }
    }

    fn view(sent: &[Sent], arrivals_ms: &[Option<u64>]) -> View {
        let arrived = sent.iter().zip(arrivals_ms);
        let arrived = arrived.filter_map(|(sent, at)| Some((digest(&sent.bytes), ms((*at)?))));
        View::of(
            sent,
            &Arrived {
                at: arrived.collect(),
                overflow: 0,
            },
        )
    }

    #[test]
    fn a_frame_is_complete_with_the_last_of_its_packets() {
        let sent = [
            packet(0, 0),
            packet(0, 1),
            packet(33, 2),
            packet(66, 3),
            packet(66, 4),
        ];

        let view = view(&sent, &[Some(60), Some(50), None, Some(90), Some(95)]);

        let seen = |frame: &Frame| (frame.captured, frame.complete, frame.turn);
        // What is missing is given up when the next frame's first packet has waited.
        let expected = [
            (ms(0), Some(ms(60)), ms(60)),
            (ms(35), None, ms(190)),
            (ms(69), Some(ms(95)), ms(190)),
        ];
        assert_eq!(view.frames.iter().map(seen).collect::<Vec<_>>(), expected);
        assert_eq!(view.frames[0].size, ByteSize(2 * 14));
        assert_eq!(view.strange, 0);
    }

    #[test]
    fn what_was_not_sent_is_strange() {
        let sent = [packet(0, 0)];
        let at = [packet(0, 0), packet(0, 9)]
            .iter()
            .map(|packet| (digest(&packet.bytes), ms(5)))
            .collect();
        assert_eq!(View::of(&sent, &Arrived { at, overflow: 0 }).strange, 1);
    }

    #[test]
    fn a_camera_is_late_beside_its_earliest_frame() {
        let sent = [packet(10, 0), packet(33, 0), packet(66, 0), packet(120, 0)];
        let view = view(&sent, &[None; 4]);
        assert_eq!(view.camera_lateness(0.5).as_millis(), 0);
        assert_eq!(view.camera_lateness(1.0).as_millis(), 20);
    }
}

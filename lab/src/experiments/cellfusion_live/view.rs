//! The frames as received by a viewer.

use super::rtp::{assemble, timestamp};
use super::stream::{Arrivals, Sent, digest};
use crate::experiments::cellfusion::{REORDERING_WAIT, play};
use crate::experiments::dashcam::{FPS, Received, ssim};
use anyhow::{Context, Result};
use hawser_qoe::{Qoe, Window, measure};
use hawser_units::{ByteSize, Instant};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Offset that keeps differences positive: no camera sends a frame earlier than this before it is
/// due relative to the first one.
const OFFSET: Duration = Duration::from_secs(1);

/// A frame of the video.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Frame {
    /// The time at which the camera sent its first packet.
    pub(super) captured: Instant,
    /// The encoded size, RTP headers included.
    pub(super) size: ByteSize,
    /// The arrival time of the first of its packets to arrive.
    pub(super) first: Option<Instant>,
    /// The arrival time of the last of its packets.
    pub(super) complete: Option<Instant>,
    /// The time at which a player that waits for whole frames shows it, as in the simulation.
    pub(super) shown: Option<Instant>,
    /// The time at which it is passed to the decoder, complete or not; [`Instant::MAX`] if no later
    /// packet arrives.
    pub(super) decode_at: Instant,
    /// The similarity (SSIM) of the decoded frame to the frame sent; `None` if the decoder did not
    /// output it.
    pub(super) ssim: Option<f64>,
}

/// The frames and packets that a viewer received.
pub(super) struct View {
    pub(super) frames: Vec<Frame>,
    /// The time at which each packet was sent, and that of its arrival.
    pub(super) packets: Vec<(Instant, Option<Instant>)>,
    /// Packets that arrived and were not sent.
    pub(super) unexpected: usize,
    /// Packets dropped at the viewer's socket.
    pub(super) overflow: u32,
}

impl View {
    /// Creates the view of one route, before it is decoded.
    pub(super) fn of(sent: &[Sent], arrived: &Arrivals) -> Self {
        let packets: Vec<_> = sent
            .iter()
            .map(|sent| (sent.at, arrived.at.get(&digest(&sent.bytes)).copied()))
            .collect();
        let mut rest = &packets[..];
        let frame = |sent: &[Sent]| {
            let (packets, further) = rest.split_at(sent.len());
            rest = further;
            Frame::of(sent, packets)
        };
        let mut frames: Vec<Frame> = by_frame(sent).map(frame).collect();
        schedule_decoding(&mut frames);
        let complete: Vec<Option<Instant>> = frames.iter().map(|frame| frame.complete).collect();
        for (frame, shown) in frames.iter_mut().zip(play(&complete)) {
            frame.shown = shown;
        }
        let found = packets.iter().filter(|packet| packet.1.is_some()).count();
        View {
            frames,
            unexpected: arrived.at.len() - found,
            overflow: arrived.overflow,
            packets,
        }
    }

    /// Decodes the data of each frame that had arrived when it was passed to the decoder.
    pub(super) fn decode(&mut self, sent: &[Sent], folder: &Path) -> Result<()> {
        let (mut units, mut received) = (Vec::new(), Vec::new());
        let mut rest = &self.packets[..];
        for (frame, sent) in self.frames.iter().zip(by_frame(sent)) {
            let (packets, further) = rest.split_at(sent.len());
            rest = further;
            units.push(assemble(sent.iter().map(|packet| &packet.bytes[..]))?);
            let has_arrived = |at: Option<Instant>| {
                at.is_some_and(|at| at <= frame.decode_at && frame.decode_at < Instant::MAX)
            };
            let part = sent
                .iter()
                .zip(packets)
                .filter(|(_, packet)| has_arrived(packet.1));
            received.push(if has_arrived(frame.complete) {
                Received::Whole
            } else {
                match assemble(part.map(|(packet, _)| &packet.bytes[..]))?.bytes {
                    bytes if bytes.is_empty() => Received::Nothing,
                    bytes => Received::Part(bytes),
                }
            });
        }
        let ssim = ssim(&units.iter().collect::<Vec<_>>(), &received, folder)?;
        for (frame, ssim) in self.frames.iter_mut().zip(ssim) {
            frame.ssim = ssim;
        }
        Ok(())
    }

    /// Returns the quantile of the camera's lateness. The frame that is earliest relative to its
    /// schedule counts as in time.
    pub(super) fn camera_lateness(&self, share: f64) -> Duration {
        let first = self
            .frames
            .first()
            .map_or(Instant::ZERO, |frame| frame.captured);
        let offset = |(number, frame): (u64, &Frame)| {
            let due = Duration::from_nanos(number * 1_000_000_000 / FPS);
            // The first frame is sent at once, and later ones may be slightly early.
            (frame.captured + OFFSET).saturating_since(first + due)
        };
        let mut offsets: Vec<Duration> = (0..).zip(&self.frames).map(offset).collect();
        offsets.sort();
        let rank = (share * offsets.len() as f64).ceil() as usize;
        let earliest = offsets.first().copied().unwrap_or_default();
        offsets
            .get(rank.max(1) - 1)
            .map_or(Duration::ZERO, |offset| offset.saturating_sub(earliest))
    }

    /// Writes all frames to a file.
    pub(super) fn write(&self, path: &Path, began: Instant) -> Result<()> {
        let seconds = |at: Instant| (at.as_nanos() as f64 - began.as_nanos() as f64) / 1e9;
        let or_nothing =
            |at: Option<Instant>| at.map_or_else(String::new, |at| format!("{:.6}", seconds(at)));
        let mut text = "captured_s,bytes,complete_s,shown_s,picture_s,ssim\n".to_owned();
        for frame in &self.frames {
            let ssim = frame
                .ssim
                .map_or_else(String::new, |ssim| format!("{ssim:.6}"));
            let (captured, size) = (seconds(frame.captured), frame.size.0);
            let [complete, shown, picture] =
                [frame.complete, frame.shown, frame.decoded_at()].map(or_nothing);
            writeln!(
                text,
                "{captured:.6},{size},{complete},{shown},{picture},{ssim}"
            )?;
        }
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the quality of experience if only whole frames are shown.
    pub(super) fn qoe(&self, window: Window) -> Qoe {
        self.measure(window, |frame| frame.shown)
    }

    /// Returns the quality of experience if every frame that the decoder outputs is shown, damaged
    /// or not.
    pub(super) fn decoded_qoe(&self, window: Window) -> Qoe {
        self.measure(window, Frame::decoded_at)
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
    /// Creates the frame of some packets, before it is scheduled and decoded.
    fn of(sent: &[Sent], packets: &[(Instant, Option<Instant>)]) -> Self {
        let arrivals: Option<Vec<Instant>> = packets.iter().map(|packet| packet.1).collect();
        Frame {
            captured: sent[0].at,
            size: ByteSize(sent.iter().map(|packet| packet.bytes.len() as u64).sum()),
            first: packets.iter().filter_map(|packet| packet.1).min(),
            complete: arrivals.and_then(|arrivals| arrivals.into_iter().max()),
            shown: None,
            decode_at: Instant::MAX,
            ssim: None,
        }
    }

    /// Returns the time at which the frame was decoded.
    pub(super) fn decoded_at(&self) -> Option<Instant> {
        self.ssim.map(|_| self.decode_at)
    }
}

/// Sets the times at which frames are passed to the decoder: in order, each when it is complete.
/// When packets of a later frame have waited for [`REORDERING_WAIT`], missing packets are given up.
fn schedule_decoding(frames: &mut [Frame]) {
    let mut later = Instant::MAX;
    for frame in frames.iter_mut().rev() {
        let given_up = later + REORDERING_WAIT;
        frame.decode_at = frame
            .complete
            .map_or(given_up, |complete| complete.min(given_up));
        later = later.min(frame.first.unwrap_or(Instant::MAX));
    }
    let mut last = Instant::ZERO;
    for frame in frames {
        last = last.max(frame.decode_at);
        frame.decode_at = last;
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

    /// Returns a packet of the frame captured at the given time, ms.
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
            &Arrivals {
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

        let seen = |frame: &Frame| (frame.captured, frame.complete, frame.decode_at);
        // Missing packets are given up when the next frame's first packet has waited.
        let expected = [
            (ms(0), Some(ms(60)), ms(60)),
            (ms(35), None, ms(190)),
            (ms(69), Some(ms(95)), ms(190)),
        ];
        assert_eq!(view.frames.iter().map(seen).collect::<Vec<_>>(), expected);
        assert_eq!(view.frames[0].size, ByteSize(2 * 14));
        assert_eq!(view.unexpected, 0);
    }

    #[test]
    fn what_was_not_sent_is_unexpected() {
        let sent = [packet(0, 0)];
        let at = [packet(0, 0), packet(0, 9)]
            .iter()
            .map(|packet| (digest(&packet.bytes), ms(5)))
            .collect();
        assert_eq!(View::of(&sent, &Arrivals { at, overflow: 0 }).unexpected, 1);
    }

    #[test]
    fn a_camera_is_late_beside_its_earliest_frame() {
        let sent = [packet(10, 0), packet(33, 0), packet(66, 0), packet(120, 0)];
        let view = view(&sent, &[None; 4]);
        assert_eq!(view.camera_lateness(0.5).as_millis(), 0);
        assert_eq!(view.camera_lateness(1.0).as_millis(), 20);
    }
}

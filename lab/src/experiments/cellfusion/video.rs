//! The video: frames of a real encode as RTP packets, and their arrival at a viewer.

use super::histogram::Histogram;
use hawser_qoe::{Frame, Qoe, STALL_THRESHOLD, Window};
use hawser_units::{Bitrate, ByteSize, Instant};
use std::time::Duration;

/// The sizes of 300 frames of an H.264 encode at [`BITRATE`] in bytes; `docs/cellfusion.md` has the
/// command.
const FRAME_SIZES: &str = include_str!("frame_sizes.txt");

/// The bitrate of the encode, and of the video unless a case has another one.
pub(in crate::experiments) const BITRATE: Bitrate = Bitrate::from_bps(30_000_000);

/// Frame rate of the camera.
pub(super) const FPS: u64 = 30;

/// Maximum bytes of a frame in one packet.
const PAYLOAD: usize = 1260;

/// Bytes of the IPv4, UDP and RTP headers.
const HEADERS: usize = 20 + 8 + 12;

const RTP_VERSION_2: u8 = 0x80;
const RTP_MARKER: u8 = 0x80;
const RTP_DYNAMIC_TYPE: u8 = 96;

/// The time that a player with a complete frame waits for the frames before it: the default
/// reordering delay of ffmpeg's RTSP receiver.
pub(in crate::experiments) const REORDERING_WAIT: Duration = Duration::from_millis(100);

/// Returns the number of frames of the encode, which the video repeats.
pub(super) fn encoded_frames() -> usize {
    FRAME_SIZES.lines().count()
}

/// The camera's video from its start to its end.
pub(super) struct Source {
    sizes: Vec<usize>,
    starts: Instant,
    frames: u64,
    next_frame: u64,
    next_packet: u64,
}

/// The packets of one frame. The last one has the RTP marker.
pub(super) struct Packets {
    pub(super) packets: Vec<Vec<u8>>,
}

impl Source {
    /// Creates a source whose frames have the sizes of the encode in proportion to the bitrate.
    pub(super) fn new(starts: Instant, length: Duration, bitrate: Bitrate) -> Self {
        let size = |line: &str| {
            let encoded: u64 = line.parse().expect("a size a line");
            let size = encoded * bitrate.bps() / BITRATE.bps();
            usize::try_from(size).expect("a frame fits into memory")
        };
        let sizes = FRAME_SIZES.lines().map(size).collect();
        let frames = u64::try_from(length.as_nanos()).expect("minutes") * FPS / 1_000_000_000;
        Source {
            sizes,
            starts,
            frames,
            next_frame: 0,
            next_packet: 0,
        }
    }

    /// Creates a viewer that expects the frames of this source.
    pub(super) fn viewer(&self) -> Viewer {
        let frame = |frame: u64| {
            let size = self.size(frame);
            Expected {
                captured: self.captured(frame),
                size,
                missing: size.div_ceil(PAYLOAD),
                complete: None,
            }
        };
        let frames: Vec<Expected> = (0..self.frames).map(frame).collect();
        let mut first = 0;
        let firsts = frames.iter().map(|frame| {
            let this = first;
            first += frame.missing;
            this
        });
        Viewer {
            firsts: firsts.collect(),
            arrivals: vec![None; first],
            frames,
        }
    }

    /// Returns the capture time of the next frame.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.next_frame < self.frames).then(|| self.captured(self.next_frame))
    }

    /// Returns the packets of the next frame if it is due. Encoding takes no time.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Packets> {
        let captured = self.due().filter(|due| *due <= now)?;
        let mut left = self.size(self.next_frame);
        let mut packets = Vec::with_capacity(left.div_ceil(PAYLOAD));
        while left > 0 {
            let payload = left.min(PAYLOAD);
            left -= payload;
            packets.push(self.packet(captured, payload, left == 0));
        }
        self.next_frame += 1;
        Some(Packets { packets })
    }

    fn packet(&mut self, captured: Instant, payload: usize, is_last: bool) -> Vec<u8> {
        const RTP_CLOCK_HZ: u64 = 90_000;
        let mut packet = vec![0; HEADERS + payload];
        let number = self.next_packet;
        self.next_packet += 1;
        packet[0] = 0x45;
        packet[9] = 17;
        let rtp = &mut packet[28..];
        rtp[0] = RTP_VERSION_2;
        rtp[1] = RTP_DYNAMIC_TYPE | if is_last { RTP_MARKER } else { 0 };
        rtp[2..4].copy_from_slice(&number.to_be_bytes()[6..]);
        let time = captured.as_nanos() / 1000 * RTP_CLOCK_HZ / 1_000_000;
        rtp[4..8].copy_from_slice(&time.to_be_bytes()[4..]);
        // The SSRC field carries the packet's number, because the sequence number of RTP wraps
        // around.
        rtp[8..12].copy_from_slice(&number.to_be_bytes()[4..]);
        packet
    }

    fn size(&self, frame: u64) -> usize {
        self.sizes[usize::try_from(frame).expect("minutes of video") % self.sizes.len()]
    }

    fn captured(&self, frame: u64) -> Instant {
        self.starts + Duration::from_nanos(frame * 1_000_000_000 / FPS)
    }
}

/// Returns whether the RTP marker says that this packet is the last one of its frame.
pub(super) fn ends_frame(packet: &[u8]) -> bool {
    packet
        .get(29)
        .is_some_and(|second| second & RTP_MARKER != 0)
}

/// The receiver of a video.
#[derive(Debug, Clone)]
pub(super) struct Viewer {
    frames: Vec<Expected>,
    /// The number of each frame's first packet.
    firsts: Vec<usize>,
    /// The arrival time of each packet.
    arrivals: Vec<Option<Instant>>,
}

#[derive(Debug, Clone)]
struct Expected {
    captured: Instant,
    size: usize,
    missing: usize,
    complete: Option<Instant>,
}

/// A frame as received by the viewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceivedFrame {
    /// The capture time.
    pub(super) captured: Instant,
    /// The arrival time of its last packet.
    pub(super) complete: Option<Instant>,
    /// The time at which it was shown.
    pub(super) shown: Option<Instant>,
    /// The encoded size.
    pub(super) size: ByteSize,
}

impl Viewer {
    /// Receives a packet from the tunnel. Duplicates are ignored.
    pub(super) fn receive(&mut self, now: Instant, packet: &[u8]) {
        let number = u32::from_be_bytes(packet[36..40].try_into().expect("four bytes"));
        self.receive_number(now, number as usize);
    }

    /// Receives the packet of the given number.
    pub(super) fn receive_number(&mut self, now: Instant, number: usize) {
        if self.arrivals[number].is_some() {
            return;
        }
        self.arrivals[number] = Some(now);
        let frame = &mut self.frames[self.firsts.partition_point(|first| *first <= number) - 1];
        frame.missing -= 1;
        if frame.missing == 0 {
            frame.complete = Some(now);
        }
    }

    /// Returns all frames.
    pub(super) fn received_frames(&self) -> Vec<ReceivedFrame> {
        let complete: Vec<Option<Instant>> =
            self.frames.iter().map(|frame| frame.complete).collect();
        let seen = |(frame, shown): (&Expected, Option<Instant>)| ReceivedFrame {
            captured: frame.captured,
            complete: frame.complete,
            shown,
            size: ByteSize(frame.size as u64),
        };
        self.frames.iter().zip(play(&complete)).map(seen).collect()
    }

    /// Returns the delays of the packets captured in a window, from the camera to the end of the
    /// tunnel, and the number of lost packets.
    pub(super) fn packet_delays(&self, from: Instant, to: Instant) -> (Histogram, u64) {
        let (mut delays, mut lost) = (Histogram::default(), 0);
        for (captured, arrived) in self.packets(from, to) {
            match arrived {
                Some(at) => delays.add(at.saturating_since(captured)),
                None => lost += 1,
            }
        }
        (delays, lost)
    }

    /// Returns the packets of a window by the second in which they were captured.
    pub(super) fn by_second(&self, from: Instant, to: Instant) -> Vec<Second> {
        let count = to.saturating_since(from).as_secs_f64().ceil() as usize;
        let mut seconds = vec![Second::default(); count];
        for (captured, arrived) in self.packets(from, to) {
            let second = captured.saturating_since(from).as_secs() as usize;
            seconds[second].add(arrived.map(|at| at.saturating_since(captured)));
        }
        seconds
    }

    /// Returns the capture time and the arrival time of each packet of a window.
    fn packets(
        &self,
        from: Instant,
        to: Instant,
    ) -> impl Iterator<Item = (Instant, Option<Instant>)> {
        self.frames
            .iter()
            .enumerate()
            .filter(move |(_, frame)| (from..to).contains(&frame.captured))
            .flat_map(|(index, frame)| {
                let end = self
                    .firsts
                    .get(index + 1)
                    .copied()
                    .unwrap_or(self.arrivals.len());
                self.arrivals[self.firsts[index]..end]
                    .iter()
                    .map(|arrived| (frame.captured, *arrived))
            })
    }
}

/// The share of lost packets from which a second is an outage. Not all of them: a queue that is full
/// may have room for the last packet of a frame, which is small.
const OUTAGE: f64 = 0.99;

/// The packets captured in one second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Second {
    sent: u32,
    delivered: u32,
    /// The delivered ones with a delay up to the stall threshold.
    in_time: u32,
    /// The sum of the delays of the delivered ones.
    delay: Duration,
}

impl Second {
    /// Adds a packet with its delay; `None` if it was lost.
    fn add(&mut self, delay: Option<Duration>) {
        self.sent += 1;
        if let Some(delay) = delay {
            self.delivered += 1;
            self.in_time += u32::from(delay <= STALL_THRESHOLD);
            self.delay += delay;
        }
    }

    /// Returns the share of packets that were lost.
    pub(super) fn lost(&self) -> f64 {
        self.share(self.sent - self.delivered)
    }

    /// Returns whether at least 99 % of the packets were lost.
    pub(super) fn is_outage(&self) -> bool {
        self.lost() >= OUTAGE
    }

    /// Returns the share of packets that were lost or delayed by more than the stall threshold.
    pub(super) fn late(&self) -> f64 {
        self.share(self.sent - self.in_time)
    }

    /// Returns the mean delay of the delivered packets in ms; `None` if there are none.
    pub(super) fn delay_ms(&self) -> Option<f64> {
        let total_ms = self.delay.as_secs_f64() * 1e3;
        (self.delivered > 0).then(|| total_ms / f64::from(self.delivered))
    }

    fn share(&self, packets: u32) -> f64 {
        f64::from(packets) / f64::from(self.sent.max(1))
    }
}

/// Returns the time at which a player shows each frame, given the times at which frames are
/// complete. It shows frames in order, and skips a missing one [`REORDERING_WAIT`] after a later
/// one is complete.
pub(in crate::experiments) fn play(complete: &[Option<Instant>]) -> Vec<Option<Instant>> {
    let mut given_up = vec![Instant::MAX; complete.len()];
    let mut later = Instant::MAX;
    for (complete, given_up) in complete.iter().zip(&mut given_up).rev() {
        *given_up = later + REORDERING_WAIT;
        later = later.min(complete.unwrap_or(Instant::MAX));
    }
    let mut playing = Instant::ZERO;
    let mut show = |(complete, given_up): (&Option<Instant>, &Instant)| {
        let complete = complete.filter(|complete| complete <= given_up);
        playing = playing.max(complete.unwrap_or(*given_up));
        complete.map(|_| playing)
    };
    complete.iter().zip(&given_up).map(&mut show).collect()
}

/// Returns the experience of a viewer between two times.
///
/// # Panics
/// If the first time is not before the second one.
pub(super) fn qoe(seen: &[ReceivedFrame], (from, to): (Instant, Instant)) -> Qoe {
    let shown = |frame: &ReceivedFrame| {
        Some(Frame {
            captured: frame.captured,
            decoded: frame.shown?,
            size: frame.size,
        })
    };
    let shown: Vec<Frame> = seen.iter().filter_map(shown).collect();
    let window = Window::new(from, to).expect("a drive takes time");
    hawser_qoe::measure(&shown, window)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(complete: &[Option<u64>]) -> Vec<Option<u64>> {
        let complete = complete
            .iter()
            .map(|ms| ms.map(|ms| Instant::from_nanos(ms * 1_000_000)));
        let shown = play(&complete.collect::<Vec<_>>());
        shown
            .into_iter()
            .map(|shown| shown.map(|at| at.as_nanos() / 1_000_000))
            .collect()
    }

    #[test]
    fn frames_are_shown_in_order() {
        assert_eq!(
            played(&[Some(20), Some(70), Some(60)]),
            [Some(20), Some(70), Some(70)]
        );
    }

    #[test]
    fn a_player_waits_for_a_missing_frame_and_then_goes_on() {
        assert_eq!(
            played(&[None, Some(60), Some(90)]),
            [None, Some(160), Some(160)]
        );
        assert_eq!(
            played(&[Some(161), Some(60), Some(190)]),
            [None, Some(160), Some(190)]
        );
        assert_eq!(played(&[Some(160), Some(60)]), [Some(160), Some(160)]);
        assert_eq!(played(&[Some(20), None]), [Some(20), None]);
    }

    #[test]
    fn a_frame_is_complete_with_its_last_packet() {
        let mut source = Source::new(Instant::ZERO, Duration::from_secs(1), BITRATE);
        let mut viewer = source.viewer();
        let frame = source.poll(Instant::ZERO).unwrap().packets;
        assert!(
            source.poll(Instant::ZERO).is_none(),
            "the next one is not due"
        );
        assert!(frame.iter().all(|packet| packet.len() <= 1300));
        assert_eq!(frame.iter().filter(|packet| ends_frame(packet)).count(), 1);
        let bytes: usize = frame.iter().map(|packet| packet.len() - HEADERS).sum();
        assert_eq!(bytes, source.size(0));

        for packet in frame.iter().rev().chain([&frame[0]]) {
            assert_eq!(viewer.frames[0].complete, None);
            viewer.receive(Instant::from_nanos(5), packet);
            if std::ptr::eq(packet, &raw const frame[0]) {
                break;
            }
        }
        assert_eq!(viewer.frames[0].complete, Some(Instant::from_nanos(5)));
        assert_eq!(
            viewer
                .packet_delays(Instant::ZERO, Instant::from_nanos(1))
                .1,
            0
        );
    }

    #[test]
    fn a_video_has_its_bitrate() {
        for mbps in [5.0, 10.0, 30.0] {
            let length = Duration::from_secs(10);
            let source = Source::new(Instant::ZERO, length, Bitrate::from_mbps(mbps));
            let bytes: usize = (0..300).map(|frame| source.size(frame)).sum();
            let measured = bytes as f64 * 8.0 / 10.0 / 1e6;
            assert!((measured / mbps - 1.0).abs() < 0.01, "{mbps}: {measured}");
        }
    }

    #[test]
    fn a_second_tells_lost_packets_from_late_ones() {
        let mut second = Second::default();
        assert!(!second.is_outage(), "nothing was sent");
        second.add(None);
        assert!(second.is_outage());
        assert_eq!(second.delay_ms(), None);
        for ms in [100, 200, 300] {
            second.add(Some(Duration::from_millis(ms)));
        }
        assert!(!second.is_outage());
        assert_eq!((second.lost(), second.late()), (0.25, 0.5));
        assert_eq!(second.delay_ms(), Some(200.0));
    }
}

//! The measurements of a viewer to whom frames are pushed.

use crate::Drawn;
use crate::measured::{self, CaptureInterval, write_qoe};
use crate::row::Row;
use crate::sound::SoundTrack;
use hawser_metrics::Metrics;
use hawser_objects::{FrameStats, Receiver, Refusals, Viewer, ViewerStats};
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_qoe::{Frame, Qoe};
use hawser_units::{ByteSize, Instant};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// The measurements of a viewer to whom frames are pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Counts of packets and frames that arrived.
    pub received: Received,
    /// Measurements of decoded frames.
    pub decoded: Decoded,
}

/// Counts of packets and frames that arrived, over all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Metrics)]
pub struct Received {
    /// Sessions that were opened.
    #[counter("sessions")]
    pub sessions: u64,
    /// Authentic packets of media.
    #[counter("packets")]
    pub packets: u64,
    /// Bytes of their UDP payloads.
    #[counter("received_bytes")]
    pub bytes: u64,
    /// The length of the longest authentic datagram.
    pub longest: usize,
    /// Those of the received bytes that the network had marked (ECN).
    #[counter("marked_bytes")]
    pub marked_bytes: u64,
    /// Datagrams that were refused, by reason.
    #[counter("datagrams_refused", "reason", of = Refused::by_reason)]
    pub refused: Refused,
    /// Packets that arrived after the deadline of their object.
    #[counter("late_packets")]
    pub late_packets: u64,
    /// Frames by how much of them arrived, and layers that were complete too late.
    #[counter("frames", "arrived", help = "Frames of which something arrived, by how much of them did", of = arrived)]
    #[counter("late_layers", help = "Layers that were complete after their frame had been shown without them",
        of = |frames| frames.late_objects)]
    #[counter("frames_lesser_encoding", help = "Frames of which some camera had another than the best encoding",
        of = |frames| frames.lesser_encoding)]
    pub frames: FrameStats,
    /// Packets of sound that arrived, of 20 ms each.
    #[counter("sound_packets")]
    pub sound: u64,
    /// Packets of sound that are missing between these.
    #[counter("sound_packets_missing")]
    pub sound_missing: u64,
    /// Frames that arrived and were not decoded, because earlier ones still were.
    pub not_decoded: u64,
    /// Datagrams that the kernel dropped because they were not read in time.
    #[counter("receive_drops")]
    pub kernel_drops: u64,
    /// Messages that the kernel did not send.
    #[counter("send_failures")]
    pub send_failures: u64,
    /// Errors of the network on the way to the publisher.
    #[counter("unreachable")]
    pub unreachable: u64,
    /// The time for which the stream was in view. `None` without a pose.
    #[counter("looks_changed", help = "Changes between in view and out of view",
        of = |looked| looked.unwrap_or_default().changes)]
    pub looked: Option<Looked>,
}

/// Returns the numbers of frames by how much of them arrived.
fn arrived(frames: &FrameStats) -> [(&'static str, u64); 4] {
    [
        ("whole", frames.whole),
        ("without_refinement", frames.reduced),
        ("without_camera", frames.without_track),
        ("without_base", frames.undecodable),
    ]
}

/// The time for which a stream was in view, and that for which it was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Looked {
    /// The time for which it was in view.
    pub at: Duration,
    /// The time for which it was not.
    pub away: Duration,
    /// How often one followed the other.
    pub changes: u64,
}

/// Counts of refused datagrams by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused {
    /// Packets of media.
    pub packets: Refusals,
    /// Messages of the session.
    pub messages: RefusedMessages,
    /// Datagrams that are longer than any of a publisher.
    pub too_long: u64,
}

/// Counts of refused messages by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefusedMessages {
    /// Messages that were not valid.
    pub invalid: u64,
    /// Messages that were not authentic.
    pub forged: u64,
    /// Messages that arrived before.
    pub repeated: u64,
    /// Messages and packets that are not expected without a session, or not from a publisher.
    pub unexpected: u64,
}

impl Refused {
    /// Returns the counts with the names of the reasons.
    pub fn by_reason(&self) -> [(&'static str, u64); 11] {
        let Refused {
            packets,
            messages,
            too_long,
        } = self;
        [
            ("invalid", messages.invalid + packets.header),
            ("forged", messages.forged + packets.forged),
            ("wrong_hop_tag", packets.hop_tag),
            ("repeated", messages.repeated + packets.duplicate),
            (
                "unexpected",
                messages.unexpected + packets.unknown_track + packets.unknown_layer,
            ),
            ("unknown_epoch", packets.unknown_epoch),
            ("too_old", packets.too_old),
            ("contradictory", packets.contradiction),
            ("too_many_packets", packets.too_many_packets),
            ("no_room", packets.no_room),
            ("too_long", *too_long),
        ]
    }

    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }

    fn add_messages(&mut self, stats: &ViewerStats) {
        let messages = &mut self.messages;
        messages.invalid += stats.invalid;
        messages.forged += stats.forged;
        messages.repeated += stats.replayed;
        messages.unexpected += stats.unexpected;
    }

    fn add_packets(&mut self, refusals: &Refusals) {
        let packets = &mut self.packets;
        packets.header += refusals.header;
        packets.hop_tag += refusals.hop_tag;
        packets.unknown_track += refusals.unknown_track;
        packets.unknown_layer += refusals.unknown_layer;
        packets.unknown_epoch += refusals.unknown_epoch;
        packets.duplicate += refusals.duplicate;
        packets.too_old += refusals.too_old;
        packets.late += refusals.late;
        packets.forged += refusals.forged;
        packets.contradiction += refusals.contradiction;
        packets.too_many_packets += refusals.too_many_packets;
        packets.no_room += refusals.no_room;
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} datagrams refused", self.total())?;
        let there = self.by_reason().into_iter().filter(|(_, count)| *count > 0);
        let reasons = there.map(|(reason, count)| format!("{count} {}", reason.replace('_', " ")));
        let reasons: Vec<String> = reasons.collect();
        match reasons.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", reasons.join(", ")),
        }
    }
}

/// Measurements of decoded frames.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// Frames that were decoded.
    pub frames: u64,
    /// The newest of them, to which the times and the quality of experience refer.
    pub measured: u64,
    /// Frames that were not decoded for what is in them, by reason.
    pub damaged: Damaged,
    /// The duration from the first frame to the end, and the quality of experience in it. `None`
    /// without frames, or if the clocks were never related.
    pub qoe: Option<(Duration, Qoe)>,
    /// From the arrival of a frame's first packet to its completeness, in milliseconds: mean and
    /// 99th percentile.
    pub transport_ms: Option<(f64, f64)>,
    /// The time of decoding in milliseconds: mean and 99th percentile.
    pub decode_ms: Option<(f64, f64)>,
    /// The pictures of the frames. `None` if none were requested.
    pub pictures: Option<Drawn>,
}

/// Counts of authentic frames that were not decoded, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Damaged {
    /// Frames whose bytes were not valid.
    pub invalid: u64,
    /// Frames whose tracks announced more points than a viewer takes.
    pub too_many_points: u64,
}

impl Damaged {
    /// Returns the counts with the names of the reasons.
    pub fn by_reason(&self) -> [(&'static str, u64); 2] {
        let Damaged {
            invalid,
            too_many_points,
        } = *self;
        [("invalid", invalid), ("too_many_points", too_many_points)]
    }

    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} damaged", self.total())?;
        match self.too_many_points {
            0 => Ok(()),
            count => write!(f, " ({count} of too many points)"),
        }
    }
}

impl Summary {
    pub(crate) fn new(received: Received, decoded: Decoded) -> Self {
        Summary { received, decoded }
    }
}

impl Received {
    /// Adds the counts of a session.
    pub(crate) fn add(&mut self, viewer: &Viewer, frames: &FrameStats) {
        if let Some(receiver) = viewer.receiver() {
            self.add_receiver(receiver);
        }
        self.refused.add_messages(viewer.stats());
        self.frames += *frames;
    }

    /// Adds the counts of the sound of a session.
    pub(crate) fn add_sound(&mut self, sound: &SoundTrack) {
        let (arrived, missing) = sound.counts();
        self.sound += arrived;
        self.sound_missing += missing;
    }

    /// Adds the counts of the receiver of a session.
    pub(crate) fn add_receiver(&mut self, receiver: &Receiver) {
        let totals = receiver.totals();
        self.packets += totals.packets;
        self.bytes += totals.bytes;
        self.marked_bytes += totals.ce_bytes;
        let refusals = receiver.refusals();
        self.refused.add_packets(&refusals);
        self.late_packets += refusals.late;
    }
}

impl Decoded {
    pub(crate) fn measure(rows: &VecDeque<Row>, damaged: Damaged, end: Instant) -> Self {
        let timeline: Vec<Frame> = rows.iter().filter_map(frame).collect();
        let mut interval = CaptureInterval::default();
        rows.iter()
            .filter_map(|row| Some((row.group, row.captured_ns?)))
            .for_each(|(group, captured_ns)| interval.record(group.into(), captured_ns));
        let qoe = measured::measure(&timeline, end, interval.get());
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
        let transport = rows.iter();
        let transport = transport.filter_map(|r| Some(ms(r.first_packet_ns?, r.received_ns)));
        let decode = rows.iter().map(|r| ms(r.decoding_ns, r.decoded_ns));
        Decoded {
            frames: rows.len() as u64,
            measured: rows.len() as u64,
            damaged,
            qoe,
            transport_ms: mean_and_p99(transport.collect()),
            decode_ms: mean_and_p99(decode.collect()),
            pictures: None,
        }
    }
}

fn frame(row: &Row) -> Option<Frame> {
    Some(Frame {
        captured: Instant::from_nanos(row.captured_ns?),
        decoded: Instant::from_nanos(row.decoded_ns),
        size: ByteSize(row.bytes),
    })
}

/// Returns the mean and the 99th percentile.
fn mean_and_p99(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let p99 = hawser_qoe::percentile(&values, 0.99)?;
    Some((values.iter().sum::<f64>() / values.len() as f64, p99))
}

impl Summary {
    /// Says if the path seems to carry no packets of the publisher's full length: no frame was whole, and none of the
    /// packets that arrived was that long.
    pub fn narrow_path(&self) -> Option<String> {
        let Received {
            packets,
            frames,
            longest,
            ..
        } = &self.received;
        let cause = match packets {
            0 => "the publisher sends no frames now, or the path can",
            _ => "the path may",
        };
        is_narrow(frames, self.decoded.frames, *longest).then(|| {
            format!(
                "no datagram of the full {DEFAULT_DATAGRAM} bytes arrived, the longest had {longest}: {cause} \
                 carry none that are longer; its MTU has to be 1228 with IPv4 and 1248 with IPv6"
            )
        })
    }
}

/// Returns whether frames arrived in part only, and no datagram of the full length.
fn is_narrow(frames: &FrameStats, decoded: u64, longest: usize) -> bool {
    let has_parts_only = frames.whole == 0 && (frames.reduced > 0 || decoded == 0);
    has_parts_only && (1..DEFAULT_DATAGRAM).contains(&longest)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { received, decoded } = self;
        write!(f, "{} frames", decoded.frames)?;
        if let Some((duration, qoe)) = &decoded.qoe {
            write_qoe(f, *duration, qoe)?;
        }
        for (what, times) in [
            ("first packet to last", decoded.transport_ms),
            ("decoding", decoded.decode_ms),
        ] {
            if let Some((mean, p99)) = times {
                write!(f, "\n{what}: {mean:.1} ms (mean), {p99:.1} ms (p99)")?;
            }
        }
        if decoded.measured < decoded.frames {
            write!(
                f,
                "\nthe times are those of the newest {} frames",
                decoded.measured
            )?;
        }
        let frames = &received.frames;
        write!(
            f,
            "\nframes: {} whole, {} without refinement, {} without some camera, {} without base, {} of \
             a lesser encoding, {}, {} not decoded for lack of time",
            frames.whole,
            frames.reduced,
            frames.without_track,
            frames.undecodable,
            frames.lesser_encoding,
            decoded.damaged,
            received.not_decoded
        )?;
        if received.sound > 0 {
            let (packets, missing) = (received.sound, received.sound_missing);
            write!(f, "\nsound: {packets} packets of 20 ms, {missing} missing")?;
        }
        if let Some(narrow) = self.narrow_path() {
            write!(f, "\n{narrow}")?;
        }
        write!(
            f,
            "\n{} packets, {:.2} % of the bytes marked; late: {} packets, {} layers; {}, {} not read in time, {} not sent; {} sessions, publisher unreachable {} times",
            received.packets,
            100.0 * received.marked_bytes as f64 / received.bytes.max(1) as f64,
            received.late_packets,
            frames.late_objects,
            received.refused,
            received.kernel_drops,
            received.send_failures,
            received.sessions,
            received.unreachable
        )?;
        if let Some(Looked { at, away, changes }) = received.looked {
            write!(
                f,
                "\nlooked at for {:.1} of {:.1} s, changed {changes} times",
                at.as_secs_f64(),
                (at + away).as_secs_f64()
            )?;
        }
        match &decoded.pictures {
            Some(pictures) => write!(f, "\n{pictures}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_full_packets_is_noticed() {
        let is_narrow = |whole, reduced, decoded, longest| {
            let frames = FrameStats {
                whole,
                reduced,
                ..FrameStats::default()
            };
            is_narrow(&frames, decoded, longest)
        };
        assert!(is_narrow(0, 20, 20, 1192) && is_narrow(0, 3, 3, 600) && is_narrow(0, 0, 0, 1100));
        assert!(!is_narrow(1, 20, 21, 1192), "small frames arrive whole");
        assert!(
            !is_narrow(0, 20, 20, DEFAULT_DATAGRAM),
            "it is another loss"
        );
        assert!(!is_narrow(0, 0, 0, 0), "nothing arrived");
    }

    #[test]
    fn refused_datagrams_have_their_reasons() {
        let mut refused = Refused::default();
        assert_eq!(refused.to_string(), "0 datagrams refused");
        refused.add_packets(&Refusals {
            duplicate: 3,
            late: 5,
            no_room: 1,
            ..Refusals::default()
        });
        refused.add_messages(&ViewerStats {
            replayed: 2,
            ..ViewerStats::default()
        });
        assert_eq!(
            refused.to_string(),
            "6 datagrams refused (5 repeated, 1 no room)"
        );
    }
}

//! Detects video streams over RTP (RFC 3550) by the order of their packets: a single payload of
//! random bytes looks like the end of a frame every now and then.

use hawser_units::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of slots for streams, as a power of two. A confirmed stream keeps its slot; the
/// others share.
const SLOTS_LOG2: u32 = 9;

/// The time without packets after which a confirmed stream may lose its slot.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The consecutive packets that have to follow one another as in RTP, and the ends of frames among
/// them, before a stream is confirmed.
const MIN_RUN: u8 = 8;
const MIN_FRAMES: u8 = 2;

/// The largest step of the sequence number between packets: some may have been lost before the
/// tunnel.
const MAX_STEP: u16 = 16;

/// The largest number of sequence numbers by which a reordered packet may be late.
const MAX_BEHIND: u16 = 64;

/// Streams that are, or may be, RTP.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: BTreeMap<u16, Stream>,
}

#[derive(Debug)]
struct Stream {
    /// A hash of flow and RTP source (SSRC).
    key: u64,
    last: Header,
    seen: Instant,
    /// Consecutive packets in order, and ends of frames among them.
    run: u8,
    frames: u8,
}

/// The fields of the RTP header that order packets.
#[derive(Debug, Clone, Copy)]
struct Header {
    is_last: bool,
    payload_type: u8,
    sequence: u16,
    timestamp: u32,
    source: u32,
}

impl Streams {
    /// Returns whether a datagram with this payload is the last of a video frame.
    pub(super) fn ends_frame(&mut self, now: Instant, flow_hash: u64, payload: &[u8]) -> bool {
        let Some(header) = Header::parse(payload) else {
            return false;
        };
        let key = (flow_hash ^ u64::from(header.source)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (key >> (u64::BITS - SLOTS_LOG2)) as u16;
        match self.slots.get_mut(&slot) {
            Some(stream) if stream.key == key => stream.update(now, header),
            Some(stream) if stream.is_confirmed() && now < stream.seen + IDLE_TIMEOUT => false,
            _ => {
                self.slots.insert(
                    slot,
                    Stream {
                        key,
                        last: header,
                        seen: now,
                        run: 1,
                        frames: 0,
                    },
                );
                false
            }
        }
    }
}

impl Stream {
    fn is_confirmed(&self) -> bool {
        self.run >= MIN_RUN && self.frames >= MIN_FRAMES
    }

    /// Records the next packet; returns whether it ends a frame.
    fn update(&mut self, now: Instant, header: Header) -> bool {
        self.seen = now;
        if self.last.sequence.wrapping_sub(header.sequence) <= MAX_BEHIND {
            return header.is_last && self.is_confirmed();
        }
        if header.follows(&self.last) {
            self.run = self.run.saturating_add(1);
            self.frames = self.frames.saturating_add(header.is_last.into());
        } else {
            (self.run, self.frames) = (1, 0);
        }
        self.last = header;
        header.is_last && self.is_confirmed()
    }
}

impl Header {
    /// Parses an RTP header of version 2. RTCP is excluded: its packet types look like RTP payload
    /// types 72 to 76 with the marker set (RFC 5761).
    fn parse(payload: &[u8]) -> Option<Header> {
        let [first, second, s0, s1, t0, t1, t2, t3, c0, c1, c2, c3] = *payload.first_chunk()?;
        let (is_last, payload_type) = (second & 0x80 != 0, second & 0x7f);
        let is_rtp = first >> 6 == 2 && !(is_last && (72..=76).contains(&payload_type));
        is_rtp.then_some(Header {
            is_last,
            payload_type,
            sequence: u16::from_be_bytes([s0, s1]),
            timestamp: u32::from_be_bytes([t0, t1, t2, t3]),
            source: u32::from_be_bytes([c0, c1, c2, c3]),
        })
    }

    /// Returns whether this packet follows `before` of the same source as in a video: all packets
    /// of a frame have the same timestamp, and the marker is set on the last one (RFC 3550, section
    /// 5.1; RFC 6184, section 5.1).
    fn follows(&self, before: &Header) -> bool {
        let step = self.sequence.wrapping_sub(before.sequence);
        let is_next_frame = self.timestamp != before.timestamp;
        // Missing packets in between may have ended a frame.
        let fits = step > 1 || is_next_frame == before.is_last;
        self.payload_type == before.payload_type && (1..=MAX_STEP).contains(&step) && fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// A packet of a video with five packets in each frame of 33 ms, whose sequence numbers wrap
    /// around soon.
    fn video(source: u32, number: u16) -> Vec<u8> {
        let marker = if number % 5 == 4 { 0x80 } else { 0 };
        let timestamp = u32::from(number / 5) * 3000;
        let mut packet = vec![0x80, marker | 96];
        packet.extend(number.wrapping_add(65_530).to_be_bytes());
        packet.extend(timestamp.to_be_bytes());
        packet.extend(source.to_be_bytes());
        packet
    }

    /// Returns the numbers of the packets that end a frame.
    fn ends(
        streams: &mut Streams,
        source: u32,
        numbers: impl IntoIterator<Item = u16>,
    ) -> Vec<u16> {
        let numbers = numbers.into_iter();
        numbers
            .filter(|number| {
                streams.ends_frame(at(u64::from(*number) * 7), 1, &video(source, *number))
            })
            .collect()
    }

    /// Deterministic pseudo-random bytes.
    fn noise(seed: u64) -> [u8; 16] {
        let mix = |x: u64| (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let words = [seed * 2 + 1, seed * 2 + 2]
            .map(|word| mix(mix(word.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
        bytes
    }

    #[test]
    fn a_video_is_believed_after_two_frames() {
        assert_eq!(ends(&mut Streams::default(), 7, 0..30), [9, 14, 19, 24, 29]);
    }

    #[test]
    fn random_payloads_never_end_a_frame() {
        let mut streams = Streams::default();
        let looks_like = |bytes: &[u8]| Header::parse(bytes).is_some_and(|header| header.is_last);
        let similar = (0..100_000)
            .filter(|seed| looks_like(&noise(*seed)))
            .count();
        assert!(
            (10_000..15_000).contains(&similar),
            "{similar} of 100,000 look like the end of a frame"
        );
        for seed in 0..100_000 {
            assert!(!streams.ends_frame(at(seed / 3), seed % 3, &noise(seed)));
        }
        assert!(streams.slots.len() <= 1 << SLOTS_LOG2);
    }

    #[test]
    fn what_has_the_bytes_of_rtp_and_not_its_order_is_not_believed() {
        let mut streams = Streams::default();
        let same = video(7, 4);
        assert!(
            (0..100).all(|ms| !streams.ends_frame(at(ms), 1, &same)),
            "the same packet again"
        );
        let mut sound = |number: u16| {
            let mut packet = video(8, number);
            packet[4..8].copy_from_slice(&(u32::from(number) * 160).to_be_bytes());
            streams.ends_frame(at(u64::from(number) * 20), 1, &packet)
        };
        assert!(
            (0..100).all(|number| !sound(number)),
            "a time for each packet and a marker now and then"
        );
    }

    #[test]
    fn losses_and_reordering_on_the_way_here_are_no_disbelief() {
        let mut streams = Streams::default();
        ends(&mut streams, 7, 0..20);
        assert_eq!(
            ends(
                &mut streams,
                7,
                [20, 21, 25, 27, 26, 28, 29, 30, 31, 32, 33, 39, 34]
            ),
            [29, 39, 34]
        );
    }

    #[test]
    fn sources_of_one_flow_are_told_apart_and_keep_their_places() {
        let mut streams = Streams::default();
        let mut frames = [0; 2];
        for number in 0..500 {
            for (source, frames) in frames.iter_mut().enumerate() {
                *frames += ends(&mut streams, source as u32, [number]).len();
            }
            if number > 10 {
                (0..50).for_each(|seed| {
                    streams.ends_frame(
                        at(u64::from(number) * 7),
                        1,
                        &noise(u64::from(number) * 50 + seed),
                    );
                });
            }
        }
        assert_eq!(frames, [99, 99]);
    }
}

//! A packet of media: its streams, its headers, and its place in a frame.

use super::session::TAG;
use crate::experiments::l4s::encoder::IP_UDP;
use std::ops::Range;

/// The bytes of the RTP header with the number for reports.
const RTP_HEADER: u64 = 20;

/// The bytes of all headers of a packet: IPv4, UDP, RTP and the tag.
pub(super) const HEADERS: u64 = IP_UDP + RTP_HEADER + TAG as u64;

/// The streams (SSRC): the packets of the frames, those of them that are sent again, and those with
/// which `str0m` fills up where it looks for a higher rate.
pub(super) const FRAMES: u32 = 1;
pub(super) const REPAIR: u32 = 2;
pub(super) const PADDING: u32 = 3;

/// The number of the first packet of a stream.
pub(super) const FIRST_NUMBER: u64 = 1;

/// The place of a packet's payload in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) frame: u32,
    pub(super) index: usize,
    pub(super) count: usize,
}

impl Part {
    /// Returns a payload of so many bytes, or of those that the place needs, with which it begins.
    pub(super) fn payload(self, bytes: usize) -> Vec<u8> {
        let mut payload = self.frame.to_be_bytes().to_vec();
        payload.extend((self.index as u32).to_be_bytes());
        payload.extend((self.count as u32).to_be_bytes());
        payload.resize(bytes.max(payload.len()), 0);
        payload
    }

    /// Reads the place at the beginning of a payload.
    pub(super) fn of(payload: &[u8]) -> Part {
        let word = |at| word(payload, at).expect("each payload begins with its place");
        Part {
            frame: word(0),
            index: word(4) as usize,
            count: word(8) as usize,
        }
    }
}

/// Returns the number of the stream to which a packet of RTP belongs.
pub(super) fn stream(datagram: &[u8]) -> Option<u32> {
    let is_rtp = datagram[0] >> 6 == 2 && !(64..96).contains(&(datagram[1] & 0x7f));
    word(datagram, 8).filter(|_| is_rtp)
}

/// Returns the request for packets of the stream of frames, by their numbers.
pub(super) fn request(lost: &Range<u64>) -> Vec<u8> {
    let (first, end) = (lost.start as u32, lost.end as u32);
    [first.to_be_bytes(), end.to_be_bytes()].concat()
}

/// Reads a request.
pub(super) fn requested(request: &[u8]) -> Option<Range<u64>> {
    let (first, end) = (word(request, 0)?, word(request, 4)?);
    Some(u64::from(first)..u64::from(end))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_begins_with_its_place() {
        let part = Part {
            frame: 3,
            index: 1,
            count: 2,
        };
        for bytes in [1, 1164] {
            let payload = part.payload(bytes);
            assert_eq!(payload.len(), bytes.max(12));
            assert_eq!(Part::of(&payload), part);
        }
    }

    #[test]
    fn a_request_names_a_range() {
        assert_eq!(requested(&request(&(7..9))), Some(7..9));
        assert_eq!(requested(&[0; 7]), None);
    }

    #[test]
    fn only_packets_of_rtp_have_a_stream() {
        let packet = |kind: u8| [0x80, kind, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2];
        assert_eq!(stream(&packet(96)), Some(REPAIR));
        assert_eq!(stream(&packet(200)), None, "a report");
        assert_eq!(stream(&[22; 12]), None, "the handshake");
    }
}

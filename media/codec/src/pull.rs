//! The pull protocol: over one TCP connection the viewer requests each frame, and the publisher
//! answers each request with its newest frame.
//!
//! `docs/design/pull.md` specifies the format and explains it. Everything is big-endian. This
//! module only converts messages from and to bytes; the publisher and the viewer handle the
//! sockets.

use crate::{Codec, zstd};
use hawser_cloud::{Digest, Level, MAX_POINTS};

/// The first bytes of every message.
pub const MAGIC: [u8; 4] = *b"HWSR";
/// The version of the protocol.
pub const VERSION: u8 = 1;
/// Length of a request, bytes.
pub const REQUEST_BYTES: usize = 8;
/// Length of a frame's header, bytes; the encoded cloud follows.
pub const HEADER_BYTES: usize = 48;
/// Maximum number of outstanding requests of one viewer. A publisher disconnects a viewer that has
/// more.
pub const MAX_IN_FLIGHT: usize = 64;

const KIND_REQUEST: u8 = 1;
const KIND_FRAME: u8 = 2;

/// The viewer's request for one more frame.
pub const REQUEST: [u8; REQUEST_BYTES] = [
    MAGIC[0],
    MAGIC[1],
    MAGIC[2],
    MAGIC[3],
    VERSION,
    KIND_REQUEST,
    0,
    0,
];

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The publisher's number of the captured frame; increases within a connection, with gaps where
    /// frames were skipped.
    pub number: u64,
    /// The capture time: nanoseconds of the publisher's wall clock since 1970.
    pub captured_ns: u64,
    /// The level that the frame was sampled to.
    pub level: Level,
    /// The encoding of the cloud.
    pub codec: Codec,
    /// Number of points of the cloud, at most [`MAX_POINTS`].
    pub points: u32,
    /// Length of the encoded cloud in bytes, at most [`zstd::max_compressed_bytes`] of the points.
    pub length: u32,
    /// The digest of the cloud before encoding.
    pub digest: Digest,
}

/// The reason that bytes are not a message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The other side uses another protocol.
    #[error("not the pull protocol: a message begins with \"{}\" instead of \"{}\"", .0.escape_ascii(), MAGIC.escape_ascii())]
    Magic([u8; 4]),
    /// The other side uses another version.
    #[error("version {0} of the pull protocol, this is version {VERSION}")]
    Version(u8),
    /// The message is not of the kind that this side expects.
    #[error("a message of kind {found} instead of {expected}")]
    Kind {
        /// The kind received.
        found: u8,
        /// The expected kind.
        expected: u8,
    },
    /// The level is unknown to this version.
    #[error("unknown level {0}")]
    Level(u8),
    /// The codec is unknown to this version.
    #[error("unknown codec {0}")]
    Codec(u8),
    /// More points than a frame may have.
    #[error("a frame of {0} points, the limit is {MAX_POINTS}")]
    Points(u32),
    /// More bytes than the points can take.
    #[error("{length} bytes are more than {points} points can take")]
    Length {
        /// The announced number of bytes.
        length: u32,
        /// The announced number of points.
        points: u32,
    },
}

/// Checks a request.
pub fn parse_request(bytes: &[u8; REQUEST_BYTES]) -> Result<(), PullError> {
    check_preamble(bytes, KIND_REQUEST)
}

impl FrameHeader {
    /// Returns the header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&[VERSION, KIND_FRAME, level_id(self.level), self.codec.tag()]);
        bytes[8..16].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.captured_ns.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.digest.0.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.points.to_be_bytes());
        bytes[36..40].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Parses a header. The result is safe to allocate by: both sizes are within bounds.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, PullError> {
        check_preamble(bytes, KIND_FRAME)?;
        let u32_at = |at: usize| u32::from_be_bytes(array_at(bytes, at));
        let u64_at = |at: usize| u64::from_be_bytes(array_at(bytes, at));
        let level = Level::ALL
            .into_iter()
            .find(|level| level_id(*level) == bytes[6]);
        let header = FrameHeader {
            number: u64_at(8),
            captured_ns: u64_at(16),
            level: level.ok_or(PullError::Level(bytes[6]))?,
            codec: codec(bytes[7])?,
            points: u32_at(32),
            length: u32_at(36),
            digest: Digest(u64_at(24)),
        };
        let FrameHeader { points, length, .. } = header;
        if points as usize > MAX_POINTS {
            return Err(PullError::Points(points));
        }
        if length as usize > zstd::max_compressed_bytes(points as usize) {
            return Err(PullError::Length { length, points });
        }
        Ok(header)
    }
}

/// Returns the codec with a tag. This protocol carries whole clouds, which only one codec encodes
/// to a length that is bounded by their number of points.
fn codec(tag: u8) -> Result<Codec, PullError> {
    let codec = Codec::from_tag(tag).filter(|codec| *codec == Codec::Zstd);
    codec.ok_or(PullError::Codec(tag))
}

fn check_preamble(bytes: &[u8], expected: u8) -> Result<(), PullError> {
    if bytes[..4] != MAGIC {
        return Err(PullError::Magic(array_at(bytes, 0)));
    }
    if bytes[4] != VERSION {
        return Err(PullError::Version(bytes[4]));
    }
    if bytes[5] != expected {
        return Err(PullError::Kind {
            found: bytes[5],
            expected,
        });
    }
    Ok(())
}

const fn level_id(level: Level) -> u8 {
    match level {
        Level::Nfov => 1,
        Level::Hd => 2,
        Level::Fhd => 3,
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..]
        .first_chunk()
        .expect("the field lies within the message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: FrameHeader = FrameHeader {
        number: 0x0102_0304_0506_0708,
        captured_ns: 1_700_000_000_123_456_789,
        level: Level::Fhd,
        codec: Codec::Zstd,
        points: 183_000,
        length: 690_000,
        digest: Digest(0xfeed_f00d_dead_beef),
    };

    #[test]
    fn the_bytes_of_version_1() {
        assert_eq!(hex::encode(REQUEST), "4857535201010000");
        assert_eq!(
            hex::encode(HEADER.to_bytes()),
            "48575352\
             01020301\
             0102030405060708\
             17979cfe3d85cd15\
             feedf00ddeadbeef\
             0002cad8\
             000a8750\
             0000000000000000"
        );
    }

    #[test]
    fn each_field_is_checked() {
        let change = |at: usize, byte: u8| {
            let mut bytes = HEADER.to_bytes();
            bytes[at] = byte;
            FrameHeader::parse(&bytes)
        };
        assert_eq!(change(0, b'G'), Err(PullError::Magic(*b"GWSR")));
        assert_eq!(change(4, 2), Err(PullError::Version(2)));
        assert_eq!(
            change(5, KIND_REQUEST),
            Err(PullError::Kind {
                found: 1,
                expected: 2
            })
        );
        assert_eq!(change(6, 0), Err(PullError::Level(0)));
        assert_eq!(change(7, 9), Err(PullError::Codec(9)));
        let other = Codec::Chunks.tag();
        assert_eq!(change(7, other), Err(PullError::Codec(other)));
        assert_eq!(change(32, 1), Err(PullError::Points(0x0102_cad8)));
        assert_eq!(
            change(36, 1),
            Err(PullError::Length {
                length: 0x010a_8750,
                points: 183_000
            })
        );
        assert_eq!(change(47, 1), Ok(HEADER), "reserved bytes are ignored");
        assert_eq!(parse_request(&REQUEST), Ok(()));
        assert_eq!(parse_request(b"GET / HT"), Err(PullError::Magic(*b"GET ")));
    }

    proptest! {
        #[test]
        fn a_header_survives_the_wire(number: u64, captured_ns: u64, digest: u64, points in 0..MAX_POINTS as u32) {
            let header = FrameHeader { number, captured_ns, digest: Digest(digest), points, length: points, ..HEADER };
            prop_assert_eq!(FrameHeader::parse(&header.to_bytes()), Ok(header));
        }

        #[test]
        fn garbage_never_panics(mut bytes: [u8; HEADER_BYTES], with_preamble: bool) {
            if with_preamble { bytes[..8].copy_from_slice(&HEADER.to_bytes()[..8]); }
            let _ = FrameHeader::parse(&bytes);
        }
    }
}

//! Reports of a viewer to the sender of its packets: the contents of RFC 8888, and the viewer's pose.
//!
//! A report is sealed as `session` describes; its number is the number of the message. These are the
//! bytes inside:
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |  viewer's time, ns: 64 bits                                   |   0
//! |  newest time stamp of the sender, ns: 64 bits                 |   8
//! |  time between its arrival and this report, us: 32 bits        |  16
//! |  packets, bytes, bytes in CE packets, refused: 64 bits each   |  20
//! +---------------+---------------+-------------------------------+
//! | flags: 1 pose |    blocks     |               0               |  52
//! +---------------+---------------+-------------------------------+
//! |  position x, y, z in metres, rotation x, y, z, w: binary32    |  56   with a pose only
//! +---------------------------------------------------------------+
//!
//! +---------------------------------------------------------------+       then for each block
//! |                          track alias                          |   0
//! |                             group                             |   4
//! |                            object                             |   8
//! +-------------------------------+-------------------------------+
//! |          first packet         |            packets            |  12
//! +---------------+---------------+-+---+-------------------------+
//! |     layer     |       0       |R|ECN|           age           |  16   16 bits for each packet
//! +---------------+---------------+-+---+-------------------------+
//! ```

pub use crate::clock::{ClockStamp, StampEcho};
use crate::cursor::{Cursor, Truncated};
use crate::media::{MAX_LAYER, ObjectId};
use hawser_units::Ecn;
use std::time::Duration;

const POSE: u8 = 0x01;
const RECEIVED: u16 = 1 << 15;

/// The longest distance from the origin in metres along each axis of a pose.
const MAX_POSITION: f32 = 1e6;

/// The largest difference of a unit quaternion's squared length from one.
const UNIT_TOLERANCE: f32 = 1e-3;

/// A report.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    /// The time of the report by the viewer's clock, and the sender's newest time stamp.
    pub clock: ClockStamp,
    /// Totals since the session started, which lost reports do not change.
    pub totals: Totals,
    /// The viewer's pose at the time of the report.
    pub pose: Option<Pose>,
    /// The packets, at most 255 blocks.
    pub blocks: Vec<Block>,
}

/// Counts since the session started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Authenticated packets, with those that arrived after their deadline. A second copy is not
    /// counted.
    pub packets: u64,
    /// Bytes of the UDP payloads of these packets.
    pub bytes: u64,
    /// Those of the bytes that arrived with the mark CE.
    pub ce_bytes: u64,
    /// Datagrams that were refused, with second copies.
    pub refused: u64,
}

/// A position and an orientation in the coordinates of the scene.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pose {
    position: [f32; 3],
    rotation: [f32; 4],
}

/// Consecutive packets of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The object.
    pub object: ObjectId,
    /// The index of the first packet.
    pub base: u16,
    /// The packets from `base` on, at least one; `None` for one that has not arrived.
    pub packets: Vec<Option<Arrival>>,
}

/// The arrival of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The ECN field with which the packet arrived.
    pub ecn: Ecn,
    /// The time from the arrival to the report.
    pub age: Age,
}

/// The time from an arrival to the report, in units of 16 us.
///
/// RFC 8888 has units of 977 us, which is as long as the whole queue of L4S.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age(u16);

/// An error in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FeedbackError {
    /// The report is shorter than its fields require.
    #[error("the report ends early")]
    Truncated,
    /// Bytes follow the last block.
    #[error("bytes follow the last block of the report")]
    Trailing,
    /// A flag is not defined.
    #[error("flags {0:#04x} of a report are not all defined")]
    Flags(u8),
    /// A reserved field is not zero, or a field that must be zero without another.
    #[error("a reserved field of the report is not zero")]
    Reserved,
    /// The pose has a number that is not finite, a position out of range, or no unit quaternion.
    #[error("the pose is not a finite position and a unit quaternion")]
    Pose,
    /// A block has no packets, or packets beyond the largest index, or an unknown layer.
    #[error("a block of the report names impossible packets")]
    Block,
}

impl From<Truncated> for FeedbackError {
    fn from(_: Truncated) -> Self {
        FeedbackError::Truncated
    }
}

impl Pose {
    /// The length in bytes.
    pub const LEN: usize = 28;

    /// Creates a pose from a position in metres and a quaternion (x, y, z, w), which is normalised.
    ///
    /// Returns `None` if a number is not finite, a coordinate is beyond 1,000 km, or the quaternion
    /// has no direction.
    pub fn new(position: [f32; 3], rotation: [f32; 4]) -> Option<Self> {
        let largest = rotation
            .iter()
            .fold(0f32, |largest, c| largest.max(c.abs()));
        let scaled = rotation.map(|component| component / largest);
        let length = scaled.iter().map(|c| c * c).sum::<f32>().sqrt();
        Pose::checked(position, scaled.map(|component| component / length))
    }

    /// Returns the position: x, y, z in metres.
    pub const fn position(&self) -> [f32; 3] {
        self.position
    }

    /// Returns the rotation: a unit quaternion (x, y, z, w).
    pub const fn rotation(&self) -> [f32; 4] {
        self.rotation
    }

    fn checked(position: [f32; 3], rotation: [f32; 4]) -> Option<Self> {
        let is_near = position.iter().all(|c| c.abs() <= MAX_POSITION);
        let squared = rotation.iter().map(|c| c * c).sum::<f32>();
        // Both comparisons are false for NaN.
        let is_unit = (squared - 1.0).abs() <= UNIT_TOLERANCE;
        (is_near && is_unit).then_some(Pose { position, rotation })
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        for number in self.position.iter().chain(&self.rotation) {
            bytes.extend(number.to_be_bytes());
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, FeedbackError> {
        let position = [cursor.f32()?, cursor.f32()?, cursor.f32()?];
        let rotation = [cursor.f32()?, cursor.f32()?, cursor.f32()?, cursor.f32()?];
        Pose::checked(position, rotation).ok_or(FeedbackError::Pose)
    }
}

impl Age {
    /// The unit.
    pub const UNIT: Duration = Duration::from_micros(16);

    /// The time is not known.
    pub const UNKNOWN: Age = Age(0x1fff);

    /// 131.04 ms or more.
    pub const SATURATED: Age = Age(0x1ffe);

    /// Returns the age, rounded down to a unit.
    pub fn of(age: Duration) -> Self {
        let units = age.as_micros() / Age::UNIT.as_micros();
        u16::try_from(units).map_or(Age::SATURATED, |units| Age(units).min(Age::SATURATED))
    }

    /// Returns the time; `None` if it is saturated or not known.
    pub fn duration(self) -> Option<Duration> {
        (self < Age::SATURATED).then(|| Age::UNIT * self.0.into())
    }
}

impl Arrival {
    fn bits(self) -> u16 {
        RECEIVED | u16::from(self.ecn.bits()) << 13 | self.age.0
    }

    fn from_bits(bits: u16) -> Result<Option<Self>, FeedbackError> {
        if bits & RECEIVED == 0 {
            let is_zero = (bits == 0).then_some(None);
            return is_zero.ok_or(FeedbackError::Reserved);
        }
        Ok(Some(Arrival {
            ecn: Ecn::from_octet((bits >> 13) as u8),
            age: Age(bits & Age::UNKNOWN.0),
        }))
    }
}

impl Block {
    /// The length in bytes without packets.
    pub const LEN: usize = 18;

    /// The length of a packet in bytes.
    pub const PACKET: usize = 2;

    fn emit(&self, bytes: &mut Vec<u8>) {
        let ObjectId {
            alias,
            group,
            object,
            layer,
        } = self.object;
        for word in [alias, group, object] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(self.base.to_be_bytes());
        let count = u16::try_from(self.packets.len()).unwrap_or(u16::MAX);
        bytes.extend(count.to_be_bytes());
        bytes.extend([layer, 0]);
        for packet in self.packets.iter().take(count.into()) {
            bytes.extend(packet.map_or(0, Arrival::bits).to_be_bytes());
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, FeedbackError> {
        let [alias, group, object] = [cursor.u32()?, cursor.u32()?, cursor.u32()?];
        let [base, count] = [cursor.u16()?, cursor.u16()?];
        let layer = cursor.u8()?;
        if cursor.u8()? != 0 {
            return Err(FeedbackError::Reserved);
        }
        if count == 0 || base.checked_add(count).is_none() || layer > MAX_LAYER {
            return Err(FeedbackError::Block);
        }
        let packets = (0..count).map(|_| Arrival::from_bits(cursor.u16()?));
        let packets = packets.collect::<Result<_, FeedbackError>>()?;
        let object = ObjectId {
            alias,
            group,
            object,
            layer,
        };
        Ok(Block {
            object,
            base,
            packets,
        })
    }
}

impl Feedback {
    /// The length in bytes without pose and blocks.
    pub const LEN: usize = 56;

    /// Returns the bytes before they are sealed.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Feedback::LEN + Pose::LEN);
        self.clock.emit(&mut bytes);
        let Totals {
            packets,
            bytes: received,
            ce_bytes,
            refused,
        } = self.totals;
        for total in [packets, received, ce_bytes, refused] {
            bytes.extend(total.to_be_bytes());
        }
        let flags = if self.pose.is_some() { POSE } else { 0 };
        let count = u8::try_from(self.blocks.len()).unwrap_or(u8::MAX);
        bytes.extend([flags, count, 0, 0]);
        if let Some(pose) = &self.pose {
            pose.emit(&mut bytes);
        }
        for block in self.blocks.iter().take(count.into()) {
            block.emit(&mut bytes);
        }
        bytes
    }

    /// Parses the bytes of an opened report.
    pub fn parse(bytes: &[u8]) -> Result<Self, FeedbackError> {
        let mut cursor = Cursor(bytes);
        let clock = ClockStamp::parse(&mut cursor)?.ok_or(FeedbackError::Reserved)?;
        let totals = Totals::parse(&mut cursor)?;
        let (has_pose, count) = parse_counts(cursor.array()?)?;
        let pose = has_pose.then(|| Pose::parse(&mut cursor)).transpose()?;
        let blocks = (0..count).map(|_| Block::parse(&mut cursor));
        let blocks = blocks.collect::<Result<_, _>>()?;
        if !cursor.0.is_empty() {
            return Err(FeedbackError::Trailing);
        }
        Ok(Feedback {
            clock,
            totals,
            pose,
            blocks,
        })
    }
}

/// Returns whether there is a pose, and the number of blocks.
fn parse_counts([flags, count, zeros @ ..]: [u8; 4]) -> Result<(bool, u8), FeedbackError> {
    if flags & !POSE != 0 {
        return Err(FeedbackError::Flags(flags));
    }
    let is_zero = zeros == [0; 2];
    let counts = is_zero.then_some((flags & POSE != 0, count));
    counts.ok_or(FeedbackError::Reserved)
}

impl Totals {
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, Truncated> {
        Ok(Totals {
            packets: cursor.u64()?,
            bytes: cursor.u64()?,
            ce_bytes: cursor.u64()?,
            refused: cursor.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::Instant;
    use proptest::prelude::*;

    fn report() -> Feedback {
        let object = ObjectId {
            alias: 1,
            group: 2,
            object: 3,
            layer: 4,
        };
        let arrival = Arrival {
            ecn: Ecn::Ce,
            age: Age::of(Duration::from_micros(1600)),
        };
        Feedback {
            clock: ClockStamp {
                sent: Instant::from_nanos(5),
                echo: Some(StampEcho {
                    stamp: Instant::from_nanos(6),
                    held: Duration::from_micros(7),
                }),
            },
            totals: Totals {
                packets: 8,
                bytes: 9,
                ce_bytes: 10,
                refused: 11,
            },
            pose: Pose::new([1.0, -2.0, 3.0], [0.0, 3.0, 0.0, 4.0]),
            blocks: vec![Block {
                object,
                base: 12,
                packets: vec![Some(arrival), None, Some(arrival)],
            }],
        }
    }

    fn arrivals() -> impl Strategy<Value = Option<Arrival>> {
        proptest::option::of((any::<u8>(), 0..0x2000u16).prop_map(|(ecn, age)| Arrival {
            ecn: Ecn::from_octet(ecn),
            age: Age(age),
        }))
    }

    prop_compose! {
        fn blocks()(
            alias: u32, group: u32, object: u32, layer in 0..=MAX_LAYER, base in 0..60_000u16,
            packets in proptest::collection::vec(arrivals(), 1..20),
        ) -> Block {
            let object = ObjectId { alias, group, object, layer };
            Block { object, base, packets }
        }
    }

    proptest! {
        #[test]
        fn emitted_reports_are_parsed_back(
            blocks in proptest::collection::vec(blocks(), 0..8),
            totals: [u64; 4], sent: u64, stamp: u64, held in proptest::option::of(0..u32::MAX),
            position in proptest::option::of([-1e6f32..1e6, -1e6f32..1e6, -1e6f32..1e6]),
        ) {
            let [packets, bytes, ce_bytes, refused] = totals;
            let report = Feedback {
                clock: ClockStamp {
                    sent: Instant::from_nanos(sent),
                    echo: held.map(|held| StampEcho {
                        stamp: Instant::from_nanos(stamp),
                        held: Duration::from_micros(held.into()),
                    }),
                },
                totals: Totals { packets, bytes, ce_bytes, refused },
                pose: position.and_then(|position| Pose::new(position, [0.1, 0.2, 0.3, 0.4])),
                blocks,
            };
            prop_assert_eq!(Feedback::parse(&report.emit()), Ok(report));
        }

        #[test]
        fn a_pose_is_normalised_or_refused(rotation: [u32; 4]) {
            let rotation = rotation.map(f32::from_bits);
            if let Some(pose) = Pose::new([0.0; 3], rotation) {
                let squared = pose.rotation().iter().map(|c| f64::from(*c).powi(2)).sum::<f64>();
                prop_assert!((squared - 1.0).abs() < 1e-5);
            } else {
                prop_assert!(rotation.iter().any(|c| !c.is_finite()) || rotation == [0.0; 4]);
            }
        }
    }

    #[test]
    fn the_length_is_the_sum_of_its_parts() {
        let expected = Feedback::LEN + Pose::LEN + Block::LEN + 3 * Block::PACKET;
        assert_eq!(report().emit().len(), expected);
    }

    #[test]
    fn ages_are_rounded_down_and_saturate() {
        let micros = Duration::from_micros;
        assert_eq!(Age::of(micros(31)).duration(), Some(micros(16)));
        assert_eq!(Age::of(micros(8189 * 16)).duration(), Some(micros(131_024)));
        assert_eq!(Age::of(micros(8190 * 16)), Age::SATURATED);
        assert_eq!(Age::of(Duration::MAX), Age::SATURATED);
        assert_eq!(Age::SATURATED.duration(), None);
        assert_eq!(Age::UNKNOWN.duration(), None);
    }

    #[test]
    fn an_echo_that_was_held_for_longer_than_fits_saturates() {
        let mut report = report();
        let echo = report.clock.echo.as_mut().unwrap();
        echo.held = Duration::MAX;
        let parsed = Feedback::parse(&report.emit()).unwrap();
        assert_eq!(parsed.clock.echo.unwrap().held, ClockStamp::MAX_HELD);
    }

    #[test]
    fn invalid_reports_are_refused() {
        let with = |at: usize, bytes: &[u8]| {
            let mut report = report().emit();
            report[at..at + bytes.len()].copy_from_slice(bytes);
            Feedback::parse(&report)
        };
        let block = Feedback::LEN + Pose::LEN;
        assert_eq!(
            with(16, &[0xff; 4]),
            Err(FeedbackError::Reserved),
            "no echo"
        );
        assert_eq!(with(52, &[2]), Err(FeedbackError::Flags(2)));
        assert_eq!(with(53, &[0]), Err(FeedbackError::Trailing));
        assert_eq!(with(53, &[2]), Err(FeedbackError::Truncated));
        assert_eq!(with(55, &[1]), Err(FeedbackError::Reserved));
        for number in [f32::NAN, f32::INFINITY, 1e9] {
            let number = number.to_be_bytes();
            assert_eq!(with(56, &number), Err(FeedbackError::Pose), "position");
            assert_eq!(with(68, &number), Err(FeedbackError::Pose), "rotation");
        }
        assert_eq!(with(block + 12, &[0xff, 0xfe]), Err(FeedbackError::Block));
        assert_eq!(with(block + 14, &[0, 0]), Err(FeedbackError::Block));
        assert_eq!(with(block + 16, &[8]), Err(FeedbackError::Block));
        assert_eq!(with(block + 17, &[1]), Err(FeedbackError::Reserved));
        assert_eq!(with(block + 18, &[0x7f]), Err(FeedbackError::Reserved));
    }
}

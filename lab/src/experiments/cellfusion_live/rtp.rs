//! H.264 in RTP (RFC 6184), in the form that ffmpeg sends.

use crate::experiments::dashcam::{AccessUnit, KEY_SLICE, TYPE};
use anyhow::{Context, Result, bail};

const HEADER: usize = 12;
const START_CODE: [u8; 4] = [0, 0, 0, 1];

/// Types beside those of NAL units.
const AGGREGATE: u8 = 24;
const FRAGMENT: u8 = 28;

/// Bits in the second byte of a fragment: it is the first one of its unit, or the last.
const FIRST: u8 = 0x80;
const LAST: u8 = 0x40;

/// Returns the RTP timestamp, which all packets of a frame share and no other packets have.
pub(super) fn timestamp(packet: &[u8]) -> Option<u32> {
    let (_, rest) = packet.split_at_checked(4)?;
    rest.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Reassembles a frame from its packets in their order. If packets are missing, the remaining ones
/// are reassembled, as receivers do. The rest of a unit whose beginning is missing is dropped,
/// because a decoder would take it for a part of the unit before it.
pub(super) fn assemble<'a>(packets: impl IntoIterator<Item = &'a [u8]>) -> Result<AccessUnit> {
    let mut frame = AccessUnit::default();
    let mut is_open = false;
    for packet in packets {
        let payload = packet
            .get(HEADER..)
            .context("a packet is too short for RTP")?;
        let (first, rest) = payload.split_first().context("a packet is empty")?;
        is_open = match first & TYPE {
            FRAGMENT => frame.add_fragment(*first, rest, is_open)?,
            AGGREGATE => {
                frame.add_all(rest)?;
                false
            }
            1..AGGREGATE => {
                frame.add(payload);
                false
            }
            other => bail!("a packet has the type {other}"),
        };
    }
    Ok(frame)
}

impl AccessUnit {
    fn add(&mut self, unit: &[u8]) {
        self.is_key |= unit[0] & TYPE == KEY_SLICE;
        self.bytes.extend(START_CODE);
        self.bytes.extend(unit);
    }

    /// Adds the units of an aggregate, each of which follows its length.
    fn add_all(&mut self, mut units: &[u8]) -> Result<()> {
        while let Some((length, rest)) = units.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes(*length));
            let unit = rest
                .split_at_checked(length)
                .filter(|(unit, _)| !unit.is_empty());
            let (unit, rest) = unit.context("an aggregate is truncated")?;
            self.add(unit);
            units = rest;
        }
        Ok(())
    }

    /// Adds a fragment. `is_open` says that the last unit consisted of fragments, so that this may
    /// be the next one. Returns whether more may follow.
    fn add_fragment(&mut self, indicator: u8, rest: &[u8], is_open: bool) -> Result<bool> {
        let (header, rest) = rest.split_first().context("a fragment is empty")?;
        let is_first = header & FIRST != 0;
        if is_first {
            self.add(&[indicator & !TYPE | header & TYPE]);
        }
        let belongs = is_first || is_open;
        if belongs {
            self.bytes.extend(rest);
        }
        Ok(belongs && header & LAST == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        [&[0x80, 96, 0, 1, 0, 0, 0x0b, 0xb8, 0, 0, 0, 0], payload].concat()
    }

    #[test]
    fn units_come_alone_in_aggregates_and_in_fragments() {
        let packets = [
            packet(&[0x78, 0, 2, 0x67, 1, 0, 3, 0x68, 2, 3]),
            packet(&[0x7c, 0x85, 4, 5]),
            packet(&[0x7c, 0x45, 6]),
            packet(&[0x41, 7]),
        ];

        let frame = assemble(packets.iter().map(Vec::as_slice)).unwrap();

        let expected = [
            &[0, 0, 0, 1, 0x67, 1][..],
            &[0, 0, 0, 1, 0x68, 2, 3],
            &[0, 0, 0, 1, 0x65, 4, 5, 6],
            &[0, 0, 0, 1, 0x41, 7],
        ];
        assert_eq!(frame.bytes, expected.concat());
        assert!(frame.is_key);
        assert_eq!(timestamp(&packets[0]), Some(3000));
    }

    #[test]
    fn what_is_there_is_put_together() {
        let (first, middle, last) = (
            packet(&[0x7c, 0x85, 1]),
            packet(&[0x7c, 0x05, 2]),
            packet(&[0x7c, 0x45, 3]),
        );
        let other = packet(&[0x41, 7]);
        for (packets, expected) in [
            (
                [&first, &last, &middle, &other],
                &[0, 0, 0, 1, 0x65, 1, 3, 0, 0, 0, 1, 0x41, 7][..],
            ),
            (
                [&other, &middle, &last, &first],
                &[0, 0, 0, 1, 0x41, 7, 0, 0, 0, 1, 0x65, 1],
            ),
            (
                [&middle, &other, &first, &middle],
                &[0, 0, 0, 1, 0x41, 7, 0, 0, 0, 1, 0x65, 1, 2],
            ),
        ] {
            assert_eq!(
                assemble(packets.map(Vec::as_slice)).unwrap().bytes,
                expected
            );
        }
    }

    #[test]
    fn a_frame_without_a_key_slice_is_none() {
        assert!(!assemble([&packet(&[0x41, 7])[..]]).unwrap().is_key);
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        for payload in [
            &[][..],
            &[0x78, 0, 9, 1],
            &[0x78, 0, 0],
            &[0x7c],
            &[0x7e, 1],
        ] {
            assert!(assemble([&packet(payload)[..]]).is_err(), "{payload:?}");
        }
        assert!(assemble([&[0x80, 96][..]]).is_err());
        assert_eq!(timestamp(&[0x80, 96]), None);
    }
}

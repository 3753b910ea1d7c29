use crate::keys::KeySlot;
use crate::seal::{Cover, Seal, SealKey};
use hawser_units::{FlowId, OutOfRange, PathId, PathSet};
use hawser_wire::Tag;

const VERSION: u8 = 2;
const TAGGED: u8 = 0x1;
const KEY: u8 = 0x2;
const WHOLE: u8 = 0x4;

/// The header of every replica, between the outer UDP header and the inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shim {
    /// The path that this copy took.
    pub path: PathId,
    /// The paths that this packet was sent over: those of the policy, and for a probe also the
    /// probed ones.
    pub paths: PathSet,
    /// The low byte of the policy's epoch.
    pub epoch: u8,
    /// The flow, as numbered by the receiving node.
    pub flow: FlowId,
    /// The sequence number. It starts above all numbers of the sender's previous sessions,
    /// increments with every packet of the flow, and wraps. All copies of a packet have the same
    /// number.
    pub sequence: u64,
    /// The time at which the sender sent the packet, in microseconds of a clock that never goes
    /// back. Has [`Shim::SENT_BITS`] bits and wraps after 8.9 years.
    pub sent_micros: u64,
    /// The proof of the sender.
    pub seal: Option<Seal>,
}

/// An error in a shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShimError {
    /// The payload is shorter than a shim.
    #[error("{0} bytes are too few for a shim: it has {len}", len = Shim::LEN)]
    Truncated(usize),
    /// The version is not known, or the payload is not a shim.
    #[error("shim version {0} is unknown: this is version {VERSION}")]
    Version(u8),
    /// The path or the flow is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

impl Shim {
    /// The length on the wire in bytes.
    pub const LEN: usize = 28;

    /// The number of bits of the send time.
    pub const SENT_BITS: u32 = 48;

    /// Parses the shim at the start of a UDP payload. Returns it with the inner packet that
    /// follows.
    ///
    /// Reserved bits are ignored here, but a [`SealRing`](crate::SealRing) checks them: pass it the
    /// bytes, not this value.
    pub fn parse(datagram: &[u8]) -> Result<(Shim, &[u8]), ShimError> {
        let Some((bytes, inner)) = datagram.split_first_chunk::<{ Shim::LEN }>() else {
            return Err(ShimError::Truncated(datagram.len()));
        };
        let [
            version_flags,
            path,
            paths,
            epoch,
            f0,
            f1,
            h0,
            h1,
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
            rest @ ..,
        ] = *bytes;
        let [t0, t1, t2, t3, tag @ ..] = rest;

        if version_flags >> 4 != VERSION {
            return Err(ShimError::Version(version_flags >> 4));
        }
        let slot = if version_flags & KEY == 0 {
            KeySlot::Zero
        } else {
            KeySlot::One
        };
        let cover = if version_flags & WHOLE == 0 {
            Cover::Headers
        } else {
            Cover::Whole
        };
        let shim = Shim {
            path: PathId::try_from(path)?,
            paths: PathSet::from_bits(paths),
            epoch,
            flow: FlowId::try_from(u16::from_be_bytes([f0, f1]))?,
            sequence: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            sent_micros: u64::from_be_bytes([0, 0, h0, h1, t0, t1, t2, t3]),
            seal: (version_flags & TAGGED != 0).then_some(Seal {
                slot,
                cover,
                tag: Tag(tag),
            }),
        };
        Ok((shim, inner))
    }

    /// Returns the bytes on the wire. The seal is emitted unchanged.
    pub fn emit(&self) -> [u8; Shim::LEN] {
        let (flags, tag) = match self.seal {
            None => (0, Tag::default()),
            Some(Seal { slot, cover, tag }) => {
                let key = if slot == KeySlot::One { KEY } else { 0 };
                let whole = if cover == Cover::Whole { WHOLE } else { 0 };
                (TAGGED | key | whole, tag)
            }
        };
        let mut bytes = [0; Shim::LEN];
        bytes[0] = VERSION << 4 | flags;
        bytes[1] = self.path.into();
        bytes[2] = self.paths.bits();
        bytes[3] = self.epoch;
        bytes[4..6].copy_from_slice(&u16::from(self.flow).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_be_bytes());
        let [_, _, h0, h1, low @ ..] = self.sent_micros.to_be_bytes();
        bytes[6..8].copy_from_slice(&[h0, h1]);
        bytes[16..20].copy_from_slice(&low);
        bytes[20..28].copy_from_slice(&tag.0);
        bytes
    }

    /// Returns the same shim, sealed for `inner` with `key`, which the receiver holds in `slot`.
    #[must_use]
    pub fn sealed(self, slot: KeySlot, key: &SealKey, cover: Cover, inner: &[u8]) -> Shim {
        let seal = Seal {
            slot,
            cover,
            tag: Tag::default(),
        };
        let unsigned = Shim {
            seal: Some(seal),
            ..self
        };
        let bytes = unsigned.emit();
        let covered = bytes
            .first_chunk()
            .expect("a shim is longer than what its tag covers");
        let tag = key.tag(covered, cover, inner);
        Shim {
            seal: Some(Seal { tag, ..seal }),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shims() -> impl Strategy<Value = Shim> {
        let slot = prop_oneof![Just(KeySlot::Zero), Just(KeySlot::One)];
        let cover = prop_oneof![Just(Cover::Headers), Just(Cover::Whole)];
        let seal = proptest::option::of((slot, cover, any::<[u8; 8]>()));
        let sent = 0..1u64 << Shim::SENT_BITS;
        (
            0..8u8,
            any::<u8>(),
            any::<u8>(),
            0..1024u16,
            any::<u64>(),
            sent,
            seal,
        )
            .prop_map(
                |(path, paths, epoch, flow, sequence, sent_micros, seal)| Shim {
                    path: PathId::try_from(path).unwrap(),
                    paths: PathSet::from_bits(paths),
                    epoch,
                    flow: FlowId::try_from(flow).unwrap(),
                    sequence,
                    sent_micros,
                    seal: seal.map(|(slot, cover, tag)| Seal {
                        slot,
                        cover,
                        tag: Tag(tag),
                    }),
                },
            )
    }

    proptest! {
        #[test]
        fn emitted_shims_are_parsed_back(shim in shims(), inner: Vec<u8>) {
            let datagram = [&shim.emit()[..], &inner].concat();

            prop_assert_eq!(Shim::parse(&datagram), Ok((shim, &inner[..])));
        }

        #[test]
        fn garbage_is_rejected_or_parsed_but_never_panics(mut bytes: Vec<u8>, version in 0..4u8) {
            if let Some(first) = bytes.first_mut() {
                *first = version << 4 | *first & 0xf;
            }
            if let Ok((shim, _)) = Shim::parse(&bytes) {
                prop_assert_eq!(Shim::parse(&shim.emit()).unwrap().0, shim);
            }
        }
    }

    #[test]
    fn values_out_of_range_are_rejected() {
        let mut bytes = [0; Shim::LEN];
        assert_eq!(Shim::parse(&bytes[..27]), Err(ShimError::Truncated(27)));
        assert_eq!(Shim::parse(&bytes), Err(ShimError::Version(0)));
        bytes[0] = 0x20;
        assert!(Shim::parse(&bytes).is_ok());
        bytes[1] = 8;
        assert_eq!(
            Shim::parse(&bytes).unwrap_err().to_string(),
            "path 8 is out of range: must be below 8"
        );
        bytes[1] = 7;
        bytes[4] = 4;
        assert_eq!(
            Shim::parse(&bytes).unwrap_err().to_string(),
            "flow 1024 is out of range: must be below 1024"
        );
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = [0; Shim::LEN];
        bytes[0] = 0x20;
        let plain = Shim::parse(&bytes).unwrap().0;
        bytes[0] |= 0xc;
        assert_eq!(Shim::parse(&bytes).unwrap().0, plain);
    }
}

use crate::tag::{Key, Tag};
use hawser_units::{FlowId, OutOfRange, PathSet, PolicyCode};

// No tagged shim starts with this byte: its lowest bit is set.
const VERSION: u8 = 0x10;
const POLICY: u8 = 1;
const PROBE_SHIFT_MAX: u8 = 15;
const ECN: u8 = 0x3;

/// An in-band signal: a UDP datagram that puts a policy into force at the node that replicates a
/// flow (Qian, step 3).
///
/// Sent to [`SIGNAL_PORT`](crate::SIGNAL_PORT) with the policy code as its ToS byte or traffic
/// class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// The flow, as numbered by the node that replicates it.
    pub flow: FlowId,
    /// The epoch of the policy. The node ignores a signal whose epoch is not greater than that of
    /// the policy in force.
    pub epoch: u32,
    /// The paths that every packet takes.
    pub code: PolicyCode,
    /// The paths that one packet in `probe_every` takes in addition.
    pub probes: PathSet,
    /// The probing interval in packets: a power of two from 2 to 32,768, or 0 without probes.
    pub probe_every: u16,
    /// The send time in microseconds since 1970. The node ignores a signal that is more than two
    /// seconds off its own clock.
    pub sent_unix_micros: u64,
}

/// An error in a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// The payload has another length than a signal.
    #[error("{0} bytes are no signal: it has {len}", len = Signal::LEN)]
    Length(usize),
    /// The version or kind of signal is not known.
    #[error(
        "version {0:#04x} and kind {1} of a signal are unknown: this is version {VERSION:#04x}, kind {POLICY}"
    )]
    Version(u8, u8),
    /// The tag is wrong: the sender does not have the key.
    #[error("the signal's tag is wrong")]
    Tag,
    /// The probing interval is not a power of two in range.
    #[error(
        "one packet in {0} cannot be probed: the number must be a power of two from 2 to 32768, or 0 for none"
    )]
    ProbeEvery(u16),
    /// The probing interval on the wire, an exponent, is out of range.
    #[error("one packet in 2^{0} cannot be probed: the power must be at most {PROBE_SHIFT_MAX}")]
    ProbeShift(u8),
    /// The flow is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

impl Signal {
    /// The length of the UDP payload in bytes.
    pub const LEN: usize = 28;

    /// The number of bytes that the tag covers.
    const COVERED: usize = 20;

    /// Returns the tagged payload.
    pub fn emit(&self, key: &Key) -> Result<[u8; Signal::LEN], SignalError> {
        let probe_shift = match self.probe_every {
            0 => 0,
            every if every > 1 && every.is_power_of_two() => every.trailing_zeros() as u8,
            every => return Err(SignalError::ProbeEvery(every)),
        };
        let mut bytes = [0; Signal::LEN];
        bytes[..5].copy_from_slice(&[
            VERSION,
            POLICY,
            self.code.0,
            self.probes.bits(),
            probe_shift,
        ]);
        bytes[6..8].copy_from_slice(&u16::from(self.flow).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.sent_unix_micros.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.to_be_bytes());
        let Tag(tag) = key.tag(&bytes[..Signal::COVERED]);
        bytes[20..].copy_from_slice(&tag);
        Ok(bytes)
    }

    /// Parses the payload of a datagram.
    pub fn parse(payload: &[u8], key: &Key) -> Result<Signal, SignalError> {
        let bytes: &[u8; Signal::LEN] = payload
            .try_into()
            .map_err(|_| SignalError::Length(payload.len()))?;
        let [
            version,
            kind,
            code,
            probes,
            probe_shift,
            _,
            f0,
            f1,
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
        let [e0, e1, e2, e3, tag @ ..] = rest;
        if (version, kind) != (VERSION, POLICY) {
            return Err(SignalError::Version(version, kind));
        }
        if probe_shift > PROBE_SHIFT_MAX {
            return Err(SignalError::ProbeShift(probe_shift));
        }
        if key.tag(&bytes[..Signal::COVERED]) != Tag(tag) {
            return Err(SignalError::Tag);
        }
        Ok(Signal {
            flow: FlowId::try_from(u16::from_be_bytes([f0, f1]))?,
            epoch: u32::from_be_bytes([e0, e1, e2, e3]),
            code: PolicyCode(code),
            probes: PathSet::from_bits(probes),
            probe_every: if probe_shift == 0 {
                0
            } else {
                1 << probe_shift
            },
            sent_unix_micros: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
        })
    }

    /// Returns the ToS byte or traffic class that the signal is sent with: the policy code.
    pub const fn traffic_class(&self) -> u8 {
        self.code.0
    }

    /// Returns whether the signal may have been sent with this ToS byte or traffic class. The
    /// network may change the lower two bits.
    pub const fn agrees_with(&self, traffic_class: u8) -> bool {
        self.code.0 & !ECN == traffic_class & !ECN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = Key::from_bytes([0x5a; 16]);

    fn signal() -> Signal {
        Signal {
            flow: FlowId::try_from(7).unwrap(),
            epoch: 9,
            code: PolicyCode(0b111),
            probes: PathSet::from_bits(0b1000),
            probe_every: 64,
            sent_unix_micros: 1_795_000_000_000_000,
        }
    }

    proptest! {
        #[test]
        fn emitted_signals_are_parsed_back(
            flow in 0..1024u16, epoch: u32, code: u8, probes: u8, shift in 0..16u32, sent_unix_micros: u64,
        ) {
            let signal = Signal {
                flow: FlowId::try_from(flow).unwrap(),
                epoch,
                code: PolicyCode(code),
                probes: PathSet::from_bits(probes),
                probe_every: if shift == 0 { 0 } else { 1 << shift },
                sent_unix_micros,
            };
            prop_assert_eq!(Signal::parse(&signal.emit(&KEY).unwrap(), &KEY), Ok(signal));
        }

        #[test]
        fn garbage_is_refused(mut payload: Vec<u8>, tag_only in 0..2u8) {
            if tag_only == 1 {
                let good = signal().emit(&KEY).unwrap();
                payload.splice(..0, good[..20].iter().copied());
                payload.resize(Signal::LEN, 0);
                prop_assume!(payload != good);
            }
            prop_assert!(Signal::parse(&payload, &KEY).is_err());
        }
    }

    #[test]
    fn the_tag_covers_every_bit() {
        let good = signal().emit(&KEY).unwrap();
        for bit in 0..Signal::LEN * 8 {
            let mut forged = good;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(Signal::parse(&forged, &KEY).is_err(), "bit {bit}");
        }
        assert_eq!(
            Signal::parse(&good, &Key::from_bytes([0; 16])),
            Err(SignalError::Tag)
        );
    }

    #[test]
    fn invalid_signals_are_rejected() {
        let with = |at: usize, value: u8| {
            let mut bytes = signal().emit(&KEY).unwrap();
            bytes[at] = value;
            let Tag(tag) = KEY.tag(&bytes[..Signal::COVERED]);
            bytes[20..].copy_from_slice(&tag);
            Signal::parse(&bytes, &KEY)
        };
        assert_eq!(with(5, 0xff), Ok(signal()), "reserved");
        assert_eq!(
            with(0, 0x11),
            Err(SignalError::Version(0x11, 1)),
            "a tagged shim"
        );
        assert_eq!(with(1, 2), Err(SignalError::Version(0x10, 2)));
        assert_eq!(with(4, 16), Err(SignalError::ProbeShift(16)));
        assert!(matches!(with(6, 4), Err(SignalError::OutOfRange(_))));
        for length in [0, 27, 29] {
            assert_eq!(
                Signal::parse(&vec![0x10; length], &KEY),
                Err(SignalError::Length(length))
            );
        }
        for probe_every in [1, 3, u16::MAX] {
            let unsendable = Signal {
                probe_every,
                ..signal()
            };
            assert_eq!(
                unsendable.emit(&KEY),
                Err(SignalError::ProbeEvery(probe_every))
            );
        }
    }

    #[test]
    fn the_network_may_mark_congestion() {
        for tos in [0b0000_0100, 0b0000_0101, 0b0000_0110, 0b0000_0111] {
            assert!(signal().agrees_with(tos));
        }
        assert!(!signal().agrees_with(0) && !signal().agrees_with(0b1000_0111));
        assert_eq!(signal().traffic_class(), 0b111);
    }
}

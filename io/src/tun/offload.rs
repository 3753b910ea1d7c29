//! The header in front of each packet of the device (`struct virtio_net_hdr`).

/// What the kernel says of a packet that it left unfinished, or is told of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Offload {
    /// What the packet is to be cut into.
    pub(super) train: Option<Train>,
    /// Where a checksum is missing: from which byte it reaches, and where it goes, counted from there.
    pub(super) checksum: Option<(usize, usize)>,
}

/// A packet that is many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Train {
    pub(super) kind: Kind,
    /// Bytes before the payload.
    pub(super) headers: usize,
    /// Payload bytes of each packet but the last, which may have fewer.
    pub(super) payload: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp4,
    Tcp6,
    Udp,
}

const NEEDS_CHECKSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;
/// The connection uses ECN; its first segment alone keeps CWR.
const ECN: u8 = 0x80;

impl Offload {
    /// Bytes in front of a packet.
    pub(super) const LEN: usize = 10;

    /// `None` for something that was not asked for.
    pub(super) fn parse(bytes: [u8; Offload::LEN]) -> Option<Offload> {
        let [flags, kind, h0, h1, p0, p1, s0, s1, o0, o1] = bytes;
        let number = |bytes| usize::from(u16::from_ne_bytes(bytes));
        let train = |kind| {
            Some(Train {
                kind,
                headers: number([h0, h1]),
                payload: number([p0, p1]),
            })
        };
        let train = match kind & !ECN {
            0 => None,
            TCP4 => train(Kind::Tcp4),
            TCP6 => train(Kind::Tcp6),
            UDP => train(Kind::Udp),
            _ => return None,
        };
        let checksum = (flags & NEEDS_CHECKSUM != 0).then(|| (number([s0, s1]), number([o0, o1])));
        Some(Offload { train, checksum })
    }

    /// Everything in it fits 16 bits, being within a packet.
    pub(super) fn emit(&self) -> [u8; Offload::LEN] {
        let bytes = |number: usize| {
            u16::try_from(number)
                .expect("an offset within a packet")
                .to_ne_bytes()
        };
        let (kind, [h0, h1], [p0, p1]) = match self.train {
            None => (0, [0; 2], [0; 2]),
            Some(train) => {
                let kind = match train.kind {
                    Kind::Tcp4 => TCP4,
                    Kind::Tcp6 => TCP6,
                    Kind::Udp => UDP,
                };
                (kind, bytes(train.headers), bytes(train.payload))
            }
        };
        let (flags, [s0, s1], [o0, o1]) = match self.checksum {
            None => (0, [0; 2], [0; 2]),
            Some((start, offset)) => (NEEDS_CHECKSUM, bytes(start), bytes(offset)),
        };
        [flags, kind, h0, h1, p0, p1, s0, s1, o0, o1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_is_parsed() {
        let train = |kind| {
            Some(Train {
                kind,
                headers: 52,
                payload: 1388,
            })
        };
        for train in [None, train(Kind::Tcp4), train(Kind::Tcp6), train(Kind::Udp)] {
            for checksum in [None, Some((20, 16))] {
                let offload = Offload { train, checksum };
                assert_eq!(Offload::parse(offload.emit()), Some(offload));
            }
        }
        assert_eq!(Offload::parse([0, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}

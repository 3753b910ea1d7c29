//! The header in front of each packet of the device (`struct virtio_net_hdr`).

/// The offloads of a packet: what has yet to be done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Offload {
    /// The parameters for segmenting the packet, if it is a GSO packet.
    pub(super) gso: Option<Gso>,
    /// The position of a missing checksum: the first byte that it covers, and the offset of the
    /// field from there.
    pub(super) checksum: Option<(usize, usize)>,
}

/// The parameters of a GSO packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gso {
    pub(super) kind: Kind,
    /// Length of the headers, bytes.
    pub(super) headers: usize,
    /// Payload bytes of each segment but the last, which may have fewer.
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
/// The connection uses ECN; only its first segment keeps CWR.
const ECN: u8 = 0x80;

impl Offload {
    /// Length of the header, bytes.
    pub(super) const LEN: usize = 10;

    /// Returns `None` for an offload that was not enabled.
    pub(super) fn parse(bytes: [u8; Offload::LEN]) -> Option<Offload> {
        let [flags, kind, h0, h1, p0, p1, s0, s1, o0, o1] = bytes;
        let number = |bytes| usize::from(u16::from_ne_bytes(bytes));
        let gso = |kind| {
            Some(Gso {
                kind,
                headers: number([h0, h1]),
                payload: number([p0, p1]),
            })
        };
        let gso = match kind & !ECN {
            0 => None,
            TCP4 => gso(Kind::Tcp4),
            TCP6 => gso(Kind::Tcp6),
            UDP => gso(Kind::Udp),
            _ => return None,
        };
        let checksum = (flags & NEEDS_CHECKSUM != 0).then(|| (number([s0, s1]), number([o0, o1])));
        Some(Offload { gso, checksum })
    }

    /// Returns the header's bytes. All values are offsets within a packet and so fit 16 bits.
    pub(super) fn emit(&self) -> [u8; Offload::LEN] {
        let bytes = |number: usize| {
            u16::try_from(number)
                .expect("an offset within a packet")
                .to_ne_bytes()
        };
        let (kind, [h0, h1], [p0, p1]) = match self.gso {
            None => (0, [0; 2], [0; 2]),
            Some(gso) => {
                let kind = match gso.kind {
                    Kind::Tcp4 => TCP4,
                    Kind::Tcp6 => TCP6,
                    Kind::Udp => UDP,
                };
                (kind, bytes(gso.headers), bytes(gso.payload))
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
        let gso = |kind| {
            Some(Gso {
                kind,
                headers: 52,
                payload: 1388,
            })
        };
        for gso in [None, gso(Kind::Tcp4), gso(Kind::Tcp6), gso(Kind::Udp)] {
            for checksum in [None, Some((20, 16))] {
                let offload = Offload { gso, checksum };
                assert_eq!(Offload::parse(offload.emit()), Some(offload));
            }
        }
        assert_eq!(Offload::parse([0, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}

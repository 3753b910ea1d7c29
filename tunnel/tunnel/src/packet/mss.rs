//! The maximum segment size of TCP (RFC 9293, section 3.7.1), lowered to what fits the tunnel. Hosts
//! that do not receive the ICMP errors about larger packets would otherwise send those for ever.

use super::{TCP, Transport, transport};
use bytes::Bytes;
use hawser_wire::ip::updated_checksum;

/// The flag that opens a connection, in the fourteenth byte of the header.
const SYN: u8 = 0x02;

/// The kinds of options (RFC 9293, section 3.1; RFC 5925, section 2.2).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const AUTHENTICATION: u8 = 29;

/// The offsets of fields in the header, and its length without options, in bytes.
const OFFSET: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const HEADER: usize = 20;

/// The headers of IP and TCP without options, in bytes, which the announced size does not contain
/// (RFC 6691).
const IPV4_HEADERS: u16 = 40;
const IPV6_HEADERS: u16 = 60;

/// Lowers the maximum segment size that a TCP SYN announces to what fits a packet of `mtu` bytes.
/// Leaves other packets unchanged, and connections whose options are authenticated (TCP-AO).
pub(crate) fn clamp(packet: &mut Bytes, mtu: u16) {
    let Some(start) = syn(packet) else {
        return;
    };
    // The received packet is shared; a SYN is rare.
    let mut own = packet.to_vec();
    clamp_syn(&mut own, start, mtu);
    *packet = own.into();
}

/// Returns the offset of the TCP header of a SYN.
fn syn(packet: &[u8]) -> Option<usize> {
    let Transport {
        protocol: TCP,
        start: Some(start),
    } = transport(packet)?
    else {
        return None;
    };
    let header = packet.get(start..)?.first_chunk::<HEADER>()?;
    (header[FLAGS] & SYN != 0).then_some(start)
}

/// Clamps a SYN whose TCP header begins at `start`.
fn clamp_syn(packet: &mut [u8], start: usize, mtu: u16) {
    let headers = if packet[0] >> 4 == 4 {
        IPV4_HEADERS
    } else {
        IPV6_HEADERS
    };
    let most = mtu.saturating_sub(headers);
    let header = &mut packet[start..];
    let length = usize::from(header[OFFSET] >> 4) * 4;
    let Some(at) = header.get(HEADER..length).and_then(announced) else {
        return;
    };
    let at = HEADER + at;
    let now = u16::from_be_bytes([header[at], header[at + 1]]);
    if now > most {
        header[at..at + 2].copy_from_slice(&most.to_be_bytes());
        let sum = u16::from_be_bytes([header[CHECKSUM], header[CHECKSUM + 1]]);
        let (old, new) = match at % 2 {
            0 => (now, most),
            // The two bytes are parts of different words.
            _ => (now.swap_bytes(), most.swap_bytes()),
        };
        header[CHECKSUM..CHECKSUM + 2]
            .copy_from_slice(&updated_checksum(sum, old, new).to_be_bytes());
    }
}

/// Returns the offset of the announced size in the options; none without one, and if the options are
/// malformed or authenticated.
fn announced(options: &[u8]) -> Option<usize> {
    let (mut at, mut announced) = (0, None);
    while let Some(kind) = options.get(at) {
        match *kind {
            END => break,
            NO_OPERATION => at += 1,
            AUTHENTICATION => return None,
            kind => {
                let length = usize::from(*options.get(at + 1)?);
                options.get(at..at + length.max(2))?;
                if kind == MSS && length == 4 {
                    announced = Some(at + 2);
                }
                at += length.max(2);
            }
        }
    }
    announced
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::ip::transport_checksum;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ACK: u8 = 0x10;
    const PADDING: [u8; 4] = [NO_OPERATION; 4];

    fn clamp(packet: &mut Vec<u8>, mtu: u16) {
        let mut received = Bytes::from(std::mem::take(packet));
        super::clamp(&mut received, mtu);
        *packet = received.into();
    }

    /// A TCP packet with these options, whose length is a multiple of four.
    fn tcp(ipv4: bool, flags: u8, options: &[u8]) -> Vec<u8> {
        let length = HEADER + options.len();
        let mut segment = vec![0; HEADER];
        segment[OFFSET] = u8::try_from(length / 4).unwrap() << 4;
        segment[FLAGS] = flags;
        segment.extend(options);
        let mut packet = match ipv4 {
            true => {
                let mut header = vec![0x45, 0, 0, u8::try_from(20 + length).unwrap()];
                header.extend([0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
                header
            }
            false => {
                let mut header = vec![0x60, 0, 0, 0, 0, u8::try_from(length).unwrap(), TCP, 64];
                header.extend([0xfd; 32]);
                header
            }
        };
        let start = packet.len();
        packet.extend(segment);
        let sum = checksum(&packet, start);
        packet[start + CHECKSUM..start + CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// The checksum of a packet whose field for it is zero; zero if the field is right.
    fn checksum(packet: &[u8], start: usize) -> u16 {
        let (source, destination) = (
            super::super::source(packet).unwrap(),
            super::super::destination(packet).unwrap(),
        );
        transport_checksum(source, destination, TCP, &packet[start..])
    }

    fn mss(size: u16) -> [u8; 4] {
        let [high, low] = size.to_be_bytes();
        [MSS, 4, high, low]
    }

    #[test]
    fn a_syn_announces_what_fits() {
        for (ipv4, headers) in [(true, 40), (false, 60)] {
            let start = if ipv4 { 20 } else { 40 };
            for flags in [SYN, SYN | ACK] {
                for odd in [false, true] {
                    let with = |size: u16| match odd {
                        false => tcp(ipv4, flags, &[PADDING, mss(size)].concat()),
                        true => tcp(
                            ipv4,
                            flags,
                            &[&[NO_OPERATION][..], &mss(size), &PADDING[..3]].concat(),
                        ),
                    };
                    let mut packet = with(1460);
                    clamp(&mut packet, 1430);
                    assert_eq!(packet, with(1430 - headers));
                    assert_eq!(checksum(&packet, start), 0);
                    let mut small = with(1200);
                    clamp(&mut small, 1430);
                    assert_eq!(small, with(1200), "never raised");
                }
            }
        }
    }

    #[test]
    fn other_packets_stay_unchanged() {
        let authenticated = [&[AUTHENTICATION, 4, 0, 0][..], &mss(1460)].concat();
        let malformed = [&mss(1460)[..], &[8, 200, 0, 0]].concat();
        let mut fragment = tcp(true, SYN, &mss(1460));
        fragment[7] = 1;
        for packet in [
            tcp(true, ACK, &mss(1460)),
            tcp(true, SYN, &authenticated),
            tcp(true, SYN, &malformed),
            tcp(true, SYN, &[END, MSS, 4, 5]),
            tcp(true, SYN, &[]),
            fragment,
        ] {
            let mut clamped = packet.clone();
            clamp(&mut clamped, 1430);
            assert_eq!(clamped, packet);
        }
    }

    proptest! {
        #[test]
        fn any_options_stay_valid(
            ipv4: bool, flags: u8, words in vec(any::<[u8; 4]>(), 0..10), mtu in 1000..1500u16, cut in 0..100usize,
        ) {
            let packet = tcp(ipv4, flags, &words.concat());
            let start = if ipv4 { 20 } else { 40 };
            let mut clamped = packet.clone();
            clamp(&mut clamped, mtu);
            prop_assert_eq!(checksum(&clamped, start), 0);
            let changed = packet.iter().zip(&clamped).filter(|(before, after)| before != after).count();
            prop_assert!(changed <= 4);
            let mut again = clamped.clone();
            clamp(&mut again, mtu);
            prop_assert_eq!(again, clamped);
            let mut short = packet[..cut.min(packet.len())].to_vec();
            clamp(&mut short, mtu);
        }
    }
}

//! The fields of an Ethernet frame that a queue discipline reads and writes.

use hawser_netem::Packet;
use hawser_units::{ByteSize, Ecn};
use hawser_wire::ip::{flow_hash, mark_congestion, traffic_class};

/// Returns a frame with its ECN field and its flow. Frames that are not IP are not ECN-capable.
pub(super) fn packet(frame: Vec<u8>) -> Packet<Vec<u8>> {
    let ip = ip_offset(&frame).map_or(&[][..], |offset| &frame[offset..]);
    Packet {
        size: ByteSize(frame.len() as u64),
        ecn: traffic_class(ip).map_or(Ecn::NotEct, Ecn::from_octet),
        flow: flow_hash(ip),
        payload: frame,
    }
}

/// Marks the IP packet of a frame with CE.
pub(super) fn mark(frame: &mut [u8]) {
    if let Some(offset) = ip_offset(frame) {
        mark_congestion(&mut frame[offset..]);
    }
}

/// Returns where the IP packet of a frame begins, behind any VLAN tags.
fn ip_offset(frame: &[u8]) -> Option<usize> {
    let mut at = 12;
    loop {
        match frame.get(at..at + 2)? {
            [0x81, 0x00] | [0x88, 0xa8] => at += 4,
            [0x08, 0x00] | [0x86, 0xdd] => return Some(at + 2),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::ip::{Ipv4Header, udp_packet};

    const TAG: [u8; 4] = [0x81, 0, 0, 5];

    fn frame(tags: &[u8], source: &str, ecn: u8) -> Vec<u8> {
        let source: std::net::SocketAddr = source.parse().unwrap();
        let ip = udp_packet(source, source, ecn, b"payload");
        let ether_type = if source.is_ipv4() {
            [0x08, 0x00]
        } else {
            [0x86, 0xdd]
        };
        [&[2; 12], tags, &ether_type, &ip].concat()
    }

    #[test]
    fn a_frame_has_the_ecn_field_and_flow_of_its_packet() {
        for source in ["10.0.0.1:1", "[fd00::1]:1"] {
            for tags in [&[][..], &TAG, &[TAG, TAG].concat()] {
                let packet = packet(frame(tags, source, 1));
                assert_eq!(packet.ecn, Ecn::Ect1, "{source} {tags:?}");
                assert_eq!(packet.flow, flow_hash(&packet.payload[14 + tags.len()..]));
                assert_eq!(packet.size.0, packet.payload.len() as u64);
            }
        }
        let other = packet([&[2; 12][..], &[0x08, 0x06], &[0xff; 60]].concat());
        assert_eq!(other.ecn, Ecn::NotEct);
        assert_eq!(packet(vec![0; 5]).ecn, Ecn::NotEct);
    }

    #[test]
    fn a_mark_is_written_behind_the_tags() {
        for source in ["10.0.0.1:1", "[fd00::1]:1"] {
            let mut marked = frame(&TAG, source, 1);
            mark(&mut marked);
            assert_eq!(marked, frame(&TAG, source, 3), "{source}");
        }
        let mut marked = frame(&[], "10.0.0.1:1", 2);
        mark(&mut marked);
        assert!(Ipv4Header::parse(&marked[14..]).is_ok());

        let arp = [&[2; 12][..], &[0x08, 0x06], &[0xff; 60]].concat();
        for frame in [arp, frame(&[], "10.0.0.1:1", 0), vec![8, 0], vec![]] {
            let mut marked = frame.clone();
            mark(&mut marked);
            assert_eq!(marked, frame);
        }
    }
}

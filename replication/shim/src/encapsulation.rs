use crate::shim::{Shim, ShimError};
use hawser_wire::ip::{self, HeaderError, Ipv4Header, Ipv6Header, UdpHeader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes that encapsulation over IPv4 adds to a packet, without Ethernet.
pub const OVERHEAD_V4: usize = Ipv4Header::LEN + UdpHeader::LEN + Shim::LEN;

/// Bytes that encapsulation over IPv6 adds to a packet, without Ethernet.
pub const OVERHEAD_V6: usize = Ipv6Header::LEN + UdpHeader::LEN + Shim::LEN;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// The destination of replicas on one path: the common part of their outer headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encapsulation {
    /// Hardware address of the next hop.
    pub destination_mac: [u8; 6],
    /// Hardware address of the sending device.
    pub source_mac: [u8; 6],
    /// Addresses of the two nodes on this path.
    pub addresses: Addresses,
    /// UDP port at both ends.
    pub port: u16,
}

/// Addresses of the sending and of the receiving node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// The outer header is IPv4.
    V4 {
        /// The sending node.
        source: Ipv4Addr,
        /// The receiving node.
        destination: Ipv4Addr,
    },
    /// The outer header is IPv6.
    V6 {
        /// The sending node.
        source: Ipv6Addr,
        /// The receiving node.
        destination: Ipv6Addr,
    },
}

/// A parsed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica<'a> {
    /// The outer headers.
    pub encapsulation: Encapsulation,
    /// DSCP and ECN of the outer header.
    pub traffic_class: u8,
    /// The header before the inner packet.
    pub shim: Shim,
    /// The packet that was replicated.
    pub inner: &'a [u8],
}

/// An error in encapsulating a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncapsulationError {
    /// The inner packet is not an IP packet.
    #[error("the inner packet is not IP: {0}")]
    Inner(#[from] HeaderError),
    /// The inner packet exceeds the length fields of the outer headers.
    #[error("an inner packet of {0} bytes does not fit into an IP packet")]
    TooLong(usize),
}

/// An error in a frame that should be a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not Ethernet, or of another type than IP.
    #[error("not an Ethernet frame with an IP packet")]
    NotIp,
    /// The outer headers are not those of a replica.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Not UDP.
    #[error("protocol {0} is not UDP")]
    NotUdp(u8),
    /// The two UDP ports differ.
    #[error("replicas have the same port at both ends, not {0} and {1}")]
    Ports(u16, u16),
    /// The shim is invalid.
    #[error(transparent)]
    Shim(#[from] ShimError),
}

impl Encapsulation {
    /// Returns the whole frame, from the Ethernet header on.
    pub fn frame(&self, shim: &Shim, inner: &[u8]) -> Result<Vec<u8>, EncapsulationError> {
        let class = ip::traffic_class(inner)?;
        let too_long = EncapsulationError::TooLong(inner.len());
        let length =
            u16::try_from(UdpHeader::LEN + Shim::LEN + inner.len()).map_err(|_| too_long)?;
        let (source, destination) = self.addresses.pair();
        let outer = ip::header_of_udp(source, destination, class, length).ok_or(too_long)?;
        let mut udp = UdpHeader {
            source_port: self.port,
            destination_port: self.port,
            length,
            checksum: 0,
        };
        let payload = [&shim.emit()[..], inner].concat();
        // Over IPv4, zero stands for no checksum.
        if source.is_ipv6() {
            let unsummed = [&udp.emit()[..], &payload].concat();
            udp.checksum = ip::udp_checksum(source, destination, &unsummed);
        }
        let macs = [self.destination_mac, self.source_mac].concat();
        let ethertype = self.addresses.ethertype();
        Ok([&macs[..], &ethertype, &outer, &udp.emit(), &payload].concat())
    }
}

impl<'a> Replica<'a> {
    /// Parses a whole frame. A UDP checksum, if present, must be correct.
    pub fn parse(frame: &'a [u8]) -> Result<Replica<'a>, FrameError> {
        let (destination_mac, rest) = frame.split_first_chunk().ok_or(FrameError::NotIp)?;
        let (source_mac, rest) = rest.split_first_chunk().ok_or(FrameError::NotIp)?;
        let (ethertype, packet) = rest.split_first_chunk().ok_or(FrameError::NotIp)?;
        let (addresses, traffic_class, protocol, segment) = outer_header(*ethertype, packet)?;
        if protocol != ip::UDP {
            return Err(FrameError::NotUdp(protocol));
        }
        let (udp, payload) = UdpHeader::parse(segment)?;
        if udp.source_port != udp.destination_port {
            return Err(FrameError::Ports(udp.source_port, udp.destination_port));
        }
        let (source, destination) = addresses.pair();
        let unsummed = udp.checksum == 0 && source.is_ipv4();
        if !unsummed && ip::transport_checksum(source, destination, ip::UDP, segment) != 0 {
            return Err(HeaderError::Checksum.into());
        }
        let (shim, inner) = Shim::parse(payload)?;
        let encapsulation = Encapsulation {
            destination_mac: *destination_mac,
            source_mac: *source_mac,
            addresses,
            port: udp.destination_port,
        };
        Ok(Replica {
            encapsulation,
            traffic_class,
            shim,
            inner,
        })
    }
}

/// Parses an IP header. Returns its addresses, traffic class and protocol, and its payload.
fn outer_header(
    ethertype: [u8; 2],
    packet: &[u8],
) -> Result<(Addresses, u8, u8, &[u8]), FrameError> {
    match ethertype {
        ETHERTYPE_IPV4 => {
            let (ip, segment) = Ipv4Header::parse(packet)?;
            let addresses = Addresses::V4 {
                source: ip.source,
                destination: ip.destination,
            };
            Ok((addresses, ip.tos, ip.protocol, segment))
        }
        ETHERTYPE_IPV6 => {
            let (ip, segment) = Ipv6Header::parse(packet)?;
            let addresses = Addresses::V6 {
                source: ip.source,
                destination: ip.destination,
            };
            Ok((addresses, ip.traffic_class, ip.next_header, segment))
        }
        _ => Err(FrameError::NotIp),
    }
}

impl Addresses {
    fn ethertype(self) -> [u8; 2] {
        match self {
            Addresses::V4 { .. } => ETHERTYPE_IPV4,
            Addresses::V6 { .. } => ETHERTYPE_IPV6,
        }
    }

    /// Returns source and destination.
    pub fn pair(self) -> (IpAddr, IpAddr) {
        match self {
            Addresses::V4 {
                source,
                destination,
            } => (source.into(), destination.into()),
            Addresses::V6 {
                source,
                destination,
            } => (source.into(), destination.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::{FlowId, PathId, PathSet};
    use proptest::prelude::*;

    fn shim() -> Shim {
        Shim {
            path: PathId::try_from(3).unwrap(),
            paths: PathSet::from_bits(0x0f),
            epoch: 1,
            flow: FlowId::try_from(1).unwrap(),
            sequence: 2,
            sent_micros: 3,
            seal: None,
        }
    }

    fn encapsulations() -> impl Strategy<Value = Encapsulation> {
        let addresses = prop_oneof![
            any::<[[u8; 4]; 2]>().prop_map(|[s, d]| Addresses::V4 {
                source: s.into(),
                destination: d.into()
            }),
            any::<[[u8; 16]; 2]>().prop_map(|[s, d]| Addresses::V6 {
                source: s.into(),
                destination: d.into()
            }),
        ];
        (any::<[[u8; 6]; 2]>(), addresses, any::<u16>()).prop_map(|(macs, addresses, port)| {
            Encapsulation {
                destination_mac: macs[0],
                source_mac: macs[1],
                addresses,
                port,
            }
        })
    }

    proptest! {
        #[test]
        fn emitted_frames_are_parsed_back(
            encapsulation in encapsulations(),
            class: u8,
            mut inner in proptest::collection::vec(any::<u8>(), 2..300),
            inner_is_v6: bool,
        ) {
            let version: u16 = if inner_is_v6 { 6 } else { 4 };
            let start = if inner_is_v6 { version << 12 | u16::from(class) << 4 } else { 0x4500 | u16::from(class) };
            inner[..2].copy_from_slice(&start.to_be_bytes());

            let frame = encapsulation.frame(&shim(), &inner).unwrap();

            let expected = Replica { encapsulation, traffic_class: class, shim: shim(), inner: &inner };
            prop_assert_eq!(Replica::parse(&frame), Ok(expected));
            let overhead = match encapsulation.addresses {
                Addresses::V4 { .. } => OVERHEAD_V4,
                Addresses::V6 { .. } => OVERHEAD_V6,
            };
            prop_assert_eq!(frame.len(), 14 + overhead + inner.len());
        }

        #[test]
        fn garbage_never_panics(
            encapsulation in encapsulations(),
            at: proptest::sample::Index,
            byte: u8,
            length: proptest::sample::Index,
        ) {
            let inner = ip::udp_packet("[::1]:1".parse().unwrap(), "[::2]:2".parse().unwrap(), 0, b"");
            let mut frame = encapsulation.frame(&shim(), &inner).unwrap();
            *at.get_mut(&mut frame) = byte;
            let _ = Replica::parse(&frame[..length.index(frame.len())]);
            let _ = Replica::parse(&frame);
        }
    }

    #[test]
    fn packets_that_do_not_fit_are_rejected() {
        let encapsulation = Encapsulation {
            destination_mac: [0; 6],
            source_mac: [0; 6],
            addresses: Addresses::V4 {
                source: [10, 0, 0, 1].into(),
                destination: [10, 0, 0, 2].into(),
            },
            port: 1,
        };
        let mut inner = vec![0x45; 0xffff - OVERHEAD_V4];
        assert!(encapsulation.frame(&shim(), &inner).is_ok());
        inner.push(0);
        assert_eq!(
            encapsulation.frame(&shim(), &inner),
            Err(EncapsulationError::TooLong(inner.len()))
        );
        assert!(matches!(
            encapsulation.frame(&shim(), b"\0\0"),
            Err(EncapsulationError::Inner(_))
        ));
    }
}

//! A TUN device with segmentation and checksum offload: packets pass between the kernel and this
//! process as GSO packets.

#[cfg(test)]
mod any_bytes;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod checks;
mod checksum;
mod coalesce;
mod offload;
mod split;

pub use hawser_io::tun::TunError;
pub use split::Malformed;

use coalesce::Group;
use hawser_io::tun;
use hawser_xnc::frame::PacketBuffer;
use nix::sys::uio::writev;
use offload::Offload;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A TUN device. It exists as long as this value.
///
/// Reading and writing never block; both may be done from several threads at once.
#[derive(Debug)]
pub struct Tun {
    file: OwnedFd,
    name: String,
    udp_gso: bool,
}

/// The buffer for one read.
#[derive(Debug)]
pub struct Buffer(Box<[u8]>);

/// The result of writing packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Packets that the kernel accepted.
    pub packets: u64,
    /// Number of system calls; packets that were merged take one.
    pub calls: u64,
    /// Packets that the kernel rejected because they are not IP packets or the device is down.
    pub rejected: u64,
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer(vec![0; Offload::LEN + 65_535 + 1].into())
    }
}

impl Tun {
    /// Creates a device called `name`, down and without addresses.
    pub fn create(name: &str) -> Result<Tun, TunError> {
        let (file, udp_gso) = tun::open(name, libc::IFF_TUN | libc::IFF_VNET_HDR)?;
        Ok(Tun {
            file,
            name: name.to_owned(),
            udp_gso,
        })
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the kernel passes and accepts GSO packets of UDP datagrams too (Linux 6.2).
    pub fn has_udp_gso(&self) -> bool {
        self.udp_gso
    }

    /// Reads one packet from the kernel, which may be a GSO packet, and appends the packets in it,
    /// each complete and with its checksums, to `packets`. All of them belong to one flow.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is nothing to read.
    pub fn read(
        &self,
        buffer: &mut Buffer,
        packets: &mut Vec<PacketBuffer>,
    ) -> io::Result<Result<(), Malformed>> {
        let length = nix::unistd::read(&self.file, &mut buffer.0)?;
        let Some((header, packet)) = buffer.0[..length].split_first_chunk() else {
            return Ok(Err(Malformed));
        };
        let before = packets.len();
        let split = Offload::parse(*header)
            .ok_or(Malformed)
            .and_then(|offload| split::split(offload, packet, packets));
        if split.is_err() {
            packets.truncate(before);
        }
        Ok(split)
    }

    /// Writes packets, merging those of one flow into GSO packets where possible.
    ///
    /// # Errors
    /// If the device is gone. A packet that the kernel rejects is counted.
    pub fn write<P: AsRef<[u8]>>(&self, packets: &[P]) -> io::Result<Written> {
        let mut written = Written::default();
        for group in coalesce::group(packets, self.udp_gso) {
            let count = group.members().count() as u64;
            written.calls += 1;
            match self.write_group(packets, &group) {
                Ok(_) => written.packets += count,
                Err(nix::Error::EBADFD) => return Err(nix::Error::EBADFD.into()),
                Err(_) => written.rejected += count,
            }
        }
        Ok(written)
    }

    fn write_group<P: AsRef<[u8]>>(&self, packets: &[P], group: &Group) -> nix::Result<usize> {
        let Some((offload, headers)) = group.headers(packets) else {
            let (header, packet) = (Offload::default().emit(), packets[group.first].as_ref());
            return writev(&self.file, &[IoSlice::new(&header), IoSlice::new(packet)]);
        };
        let header = offload.emit();
        let payload = |index: usize| IoSlice::new(&packets[index].as_ref()[headers.len()..]);
        let slices = [IoSlice::new(&header), IoSlice::new(&headers)].into_iter();
        let slices: Vec<_> = slices.chain(group.members().map(payload)).collect();
        writev(&self.file, &slices)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Tun {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::ip::{self, Ipv4Header, Ipv6Header, transport_checksum};
    use std::net::IpAddr;

    const V4: [&str; 2] = ["192.0.2.1", "198.51.100.2"];
    const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

    /// A TCP segment with 12 bytes of options, like those of a time stamp.
    fn tcp(addresses: [&str; 2], number: u16, sequence: u32, flags: u8, payload: usize) -> Vec<u8> {
        let [source, destination]: [IpAddr; 2] = addresses.map(|address| address.parse().unwrap());
        let mut segment = vec![0u8; 32];
        segment[..4].copy_from_slice(&[0x10, 0x00, 0x20, 0x00]);
        segment[4..8].copy_from_slice(&sequence.to_be_bytes());
        segment[8..12].copy_from_slice(&77u32.to_be_bytes());
        segment[12] = 8 << 4;
        segment[13] = flags;
        segment[14..16].copy_from_slice(&500u16.to_be_bytes());
        segment[20..24].copy_from_slice(&[1, 1, 8, 10]);
        segment.extend((0..payload).map(|i| (i as u32).wrapping_add(sequence) as u8));
        let checksum = transport_checksum(source, destination, 6, &segment);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        let header = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4Header {
                tos: 2,
                total_length: 20 + segment.len() as u16,
                identification: number,
                dont_fragment: true,
                ttl: 64,
                protocol: 6,
                source,
                destination,
            }
            .emit()
            .to_vec(),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Header {
                traffic_class: 2,
                flow_label: 7,
                payload_length: segment.len() as u16,
                next_header: 6,
                hop_limit: 64,
                source,
                destination,
            }
            .emit()
            .to_vec(),
            _ => unreachable!(),
        };
        [header, segment].concat()
    }

    fn udp(addresses: [&str; 2], payload: usize) -> Vec<u8> {
        let [source, destination] =
            addresses.map(|address| (address.parse::<IpAddr>().unwrap(), 4000).into());
        ip::udp_packet(source, destination, 0, &vec![0x5a; payload])
    }

    const ACK: u8 = 0x10;
    const PSH: u8 = 0x18;
    const FIN: u8 = 0x11;

    /// Merges packets and splits them again. Returns the number of writes, and all resulting
    /// packets in order.
    fn split_merged(packets: &[Vec<u8>]) -> (usize, Vec<Vec<u8>>) {
        let groups = coalesce::group(packets, true);
        let mut back = Vec::new();
        for group in &groups {
            match group.headers(packets) {
                None => back.push(packets[group.first].clone().into()),
                Some((offload, mut gso)) => {
                    let headers = gso.len();
                    group
                        .members()
                        .for_each(|index| gso.extend_from_slice(&packets[index][headers..]));
                    let offload = Offload::parse(offload.emit()).unwrap();
                    split::split(offload, &gso, &mut back).unwrap();
                }
            }
        }
        let back = back.iter().map(|packet: &PacketBuffer| packet.to_vec());
        (groups.len(), back.collect())
    }

    #[test]
    fn segments_of_a_connection_become_one_train() {
        for addresses in [V4, V6] {
            let flags = [ACK, ACK, ACK, PSH];
            let sizes = [1000, 1000, 1000, 300];
            let packets: Vec<_> = (0..4usize)
                .map(|i| {
                    tcp(
                        addresses,
                        9 + i as u16,
                        (i as u32 * 1000).wrapping_sub(1500),
                        flags[i],
                        sizes[i],
                    )
                })
                .collect();
            assert_eq!(split_merged(&packets), (1, packets));
        }
    }

    #[test]
    fn datagrams_of_one_size_become_one_train() {
        for addresses in [V4, V6] {
            let mut packets: Vec<_> = [700, 700, 700, 20, 700]
                .map(|size| udp(addresses, size))
                .into();
            if addresses == V4 {
                for (i, packet) in packets[..4].iter_mut().enumerate() {
                    packet[5] = i as u8;
                    packet[10..12].fill(0);
                    let checksum = ip::checksum(&packet[..20]);
                    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                }
            }
            assert_eq!(split_merged(&packets), (2, packets));
        }
    }

    #[test]
    fn flows_do_not_mix_and_keep_their_order() {
        let other = ["192.0.2.9", "198.51.100.2"];
        let packets = [
            tcp(V4, 1, 0, ACK, 100),
            tcp(other, 1, 0, ACK, 100),
            tcp(V4, 2, 100, ACK, 100),
            udp(V4, 100),
            tcp(other, 2, 100, ACK, 100),
        ];
        let (writes, back) = split_merged(&packets);
        assert_eq!(writes, 3);
        assert_eq!(back, [0, 2, 1, 4, 3].map(|i: usize| packets[i].clone()));
    }

    #[test]
    fn what_a_receiver_could_tell_apart_is_left_alone() {
        let first = tcp(V4, 1, 0, ACK, 100);
        let gap = tcp(V4, 2, 101, ACK, 100);
        let fin = tcp(V4, 2, 100, FIN, 100);
        let longer = tcp(V4, 2, 100, ACK, 101);
        let mut other_ttl = tcp(V4, 2, 100, ACK, 100);
        other_ttl[8] = 63;
        let mut wrong = tcp(V4, 2, 100, ACK, 100);
        *wrong.last_mut().unwrap() ^= 1;
        let acknowledgement = tcp(V4, 2, 100, ACK, 0);
        for second in [
            gap,
            fin,
            longer,
            other_ttl,
            wrong,
            acknowledgement,
            vec![0x45],
            vec![],
        ] {
            let packets = [first.clone(), second];
            assert_eq!(split_merged(&packets), (2, packets.to_vec()));
        }
        let mut wrong_first = first.clone();
        *wrong_first.last_mut().unwrap() ^= 1;
        let packets = [wrong_first, tcp(V4, 2, 100, ACK, 100)];
        assert_eq!(split_merged(&packets), (2, packets.to_vec()));
    }

    #[test]
    fn trains_are_limited() {
        let packets: Vec<_> = (0..200).map(|i| tcp(V6, 0, i * 1400, ACK, 1400)).collect();
        let (writes, back) = split_merged(&packets);
        assert_eq!(writes, 200usize.div_ceil(46));
        assert_eq!(back, packets);
    }

    #[test]
    fn whatever_the_header_says_nothing_panics() {
        let packet = tcp(V4, 1, 0, ACK, 300);
        for length in 0..packet.len() {
            for header in [
                [1, 1, 0, 0, 100, 0, 20, 0, 16, 0],
                [1, 5, 0, 0, 1, 0, 255, 255, 6, 0],
                [1; 10],
            ] {
                if let Some(offload) = Offload::parse(header) {
                    let _ = split::split(offload, &packet[..length], &mut Vec::new());
                }
            }
        }
    }
}

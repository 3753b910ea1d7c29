//! How sockets carry the packets of the video.

use nix::sys::socket::{setsockopt, sockopt as option};
use std::io;
use std::net::UdpSocket;
use std::time::Duration;

/// Receive buffer that holds the packets that arrive while the thread waits for a processor.
const BUFFER_BYTES: usize = 64 << 20;

/// The read timeout of a socket.
pub(super) const READ_TIMEOUT: Duration = Duration::from_millis(20);

/// A buffer that extracts packets from a stream of bytes, each after its length (RFC 4571).
#[derive(Default)]
pub(super) struct PacketReader(Vec<u8>);

impl PacketReader {
    /// Adds bytes, and passes each complete packet to `each`.
    pub(super) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        self.0.extend(bytes);
        let mut rest = &self.0[..];
        while let Some((length, after)) = rest.split_first_chunk()
            && let Some((packet, after)) =
                after.split_at_checked(u16::from_be_bytes(*length).into())
        {
            each(packet);
            rest = after;
        }
        self.0 = rest.to_vec();
    }
}

/// Returns a packet with the length that precedes it in a stream of bytes.
pub(super) fn with_length(packet: &[u8]) -> Vec<u8> {
    let length = u16::try_from(packet.len()).expect("a packet is smaller than 64 KiB");
    [&length.to_be_bytes()[..], packet].concat()
}

/// Enlarges the receive buffer of a socket, and sets its read timeout.
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    setsockopt(socket, option::RcvBufForce, &BUFFER_BYTES)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_found_again_however_the_stream_is_cut() {
        let packets = [vec![1; 300], vec![2], vec![3; 70]];
        let stream: Vec<u8> = packets
            .iter()
            .flat_map(|packet| with_length(packet))
            .collect();
        for size in [1, 2, 3, 100, stream.len()] {
            let (mut reader, mut found) = (PacketReader::default(), Vec::new());
            stream
                .chunks(size)
                .for_each(|part| reader.push(part, |packet| found.push(packet.to_vec())));
            assert_eq!(found, packets, "{size}");
        }
    }
}

use std::hash::{DefaultHasher, Hasher};

/// Minimum size of a payload in bytes: the number and its digest.
pub const MIN_PAYLOAD: usize = 20;

/// The error of a packet that no sender of its stream sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Corrupt;

/// Appends packet `sequence` of stream `id`: the stream (4 bytes), the number (8), a digest of all
/// other bytes (8), and filler bytes that depend on both numbers, so that neither packets nor parts
/// of them repeat.
pub(super) fn append(packet: &mut Vec<u8>, id: u16, sequence: u64, length: usize) {
    let start = packet.len();
    packet.extend_from_slice(&u32::from(id).to_be_bytes());
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&[0; 8]);
    let mut state = sequence ^ u64::from(id) << 48;
    while packet.len() < start + length {
        packet.extend_from_slice(&splitmix(&mut state).to_le_bytes());
    }
    packet.truncate(start + length);
    let digest = digest(&packet[start..]);
    packet[start + 12..start + 20].copy_from_slice(&digest.to_be_bytes());
}

/// Returns the number of an intact packet of stream `id`.
pub(super) fn sequence(packet: &[u8], id: u16) -> Result<u64, Corrupt> {
    let (stream, rest) = packet.split_first_chunk::<4>().ok_or(Corrupt)?;
    let (sequence, rest) = rest.split_first_chunk::<8>().ok_or(Corrupt)?;
    let (claimed, _) = rest.split_first_chunk::<8>().ok_or(Corrupt)?;
    if u32::from_be_bytes(*stream) != u32::from(id)
        || u64::from_be_bytes(*claimed) != digest(packet)
    {
        return Err(Corrupt);
    }
    Ok(u64::from_be_bytes(*sequence))
}

/// Returns the digest of all bytes but those of the digest. Sender and receiver are in this
/// process, so any hash that is stable within a process is sufficient.
fn digest(packet: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&packet[..12]);
    hasher.write(&packet[20..]);
    hasher.finish()
}

/// The splitmix64 generator of Vigna.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_any_length_is_known_by_its_number() {
        for length in MIN_PAYLOAD..100 {
            let mut packet = Vec::new();
            append(&mut packet, 3, 77, length);
            assert_eq!(packet.len(), length);
            assert_eq!(sequence(&packet, 3), Ok(77));
            assert_eq!(sequence(&packet, 4), Err(Corrupt));
            assert_eq!(sequence(&packet[..length - 1], 3), Err(Corrupt));
        }
    }

    #[test]
    fn any_altered_byte_is_seen() {
        let mut packet = Vec::new();
        append(&mut packet, 0, 1, 61);
        for at in 0..packet.len() {
            packet[at] ^= 1;
            assert_eq!(sequence(&packet, 0), Err(Corrupt), "byte {at}");
            packet[at] ^= 1;
        }
    }
}

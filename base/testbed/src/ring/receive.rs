use super::{packet_socket, set_option};
use hawser_io::clock::Clocks;
use hawser_units::Instant;
use libc::{c_int, tpacket2_hdr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of the ring for each slot: a header and a frame.
pub(super) const SLOT: usize = 2048;

/// Offset of the frame in its slot. `tpacket_rcv` puts the network layer after `TPACKET2_HDRLEN`
/// (52) and 16 bytes for the link layer, aligned to 16, and the offload header: 90. The Ethernet
/// header begins 14 bytes before it.
pub(super) const HEADROOM: usize = 76;

/// Number of frames in the ring. At 400 Mb/s of 1400-byte frames it takes 115 ms to fill.
const SLOTS: usize = 4096;

const BLOCK: usize = 1 << 16;

/// Length of `virtio_net_hdr`, in which the kernel describes the offloads of a frame.
const OFFLOAD_HEADER: usize = 10;

const VLAN_TAG: usize = 4;

/// The frames that arrive on a device.
#[derive(Debug)]
pub struct Receiver {
    socket: OwnedFd,
    ring: Ring,
    next: usize,
}

/// A frame in the ring.
#[derive(Debug)]
pub struct Frame<'a> {
    arrived: Instant,
    bytes: &'a [u8],
    vlan: Option<[u8; VLAN_TAG]>,
    checksum: Option<Checksum>,
}

/// The reason that a frame cannot be carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The frame is larger than [`MAX_FRAME`](super::MAX_FRAME).
    TooLarge,
    /// The frame is a GSO packet: segmentation offload is on at the sending device.
    Gso,
}

impl Receiver {
    pub(super) fn open(index: u32) -> io::Result<Self> {
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (SLOTS * SLOT / BLOCK) as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: SLOTS as u32,
        };
        let on: c_int = 1;
        let socket = packet_socket(index, libc::ETH_P_ALL as u16, |socket| {
            set_option(
                socket,
                libc::PACKET_VERSION,
                &(libc::tpacket_versions::TPACKET_V2 as c_int),
            )?;
            set_option(socket, libc::PACKET_IGNORE_OUTGOING, &on)?;
            set_option(socket, libc::PACKET_VNET_HDR, &on)?;
            set_option(socket, libc::PACKET_RX_RING, &request)
        })?;
        Ok(Receiver {
            ring: Ring::map(&socket)?,
            socket,
            next: 0,
        })
    }

    /// Passes every waiting frame to `take`, in order of arrival, and returns their number.
    pub fn receive(&mut self, mut take: impl FnMut(Result<Frame<'_>, FrameError>)) -> usize {
        let mut clocks = None;
        let mut taken = 0;
        while taken < SLOTS && self.ring.is_filled(self.next) {
            let clocks = clocks.get_or_insert_with(Clocks::read);
            take(self.ring.frame(self.next, clocks));
            self.ring.release(self.next);
            self.next = (self.next + 1) % SLOTS;
            taken += 1;
        }
        taken
    }

    /// Returns the number of frames dropped since the last call because the ring was full.
    pub fn drops(&self) -> io::Result<u32> {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes at the pointer to a live value.
        let got = unsafe {
            let stats = (&raw mut stats).cast();
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                stats,
                &mut length,
            )
        };
        if got == 0 {
            Ok(stats.tp_drops)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl AsFd for Receiver {
    /// Readable when a frame is waiting.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Frame<'_> {
    /// When the kernel received the frame, on the monotonic clock.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Returns the frame as it was sent: with its VLAN tag, which the kernel removes, and with the
    /// checksum that the kernel left to the device.
    pub fn to_vec(&self) -> Vec<u8> {
        const ADDRESSES: usize = 12;
        let mut bytes = Vec::with_capacity(self.bytes.len() + VLAN_TAG);
        bytes.extend_from_slice(self.bytes);
        if let Some(checksum) = self.checksum {
            checksum.complete(&mut bytes);
        }
        if let Some(tag) = self.vlan {
            bytes.splice(ADDRESSES..ADDRESSES, tag);
        }
        bytes
    }
}

/// The memory shared with the kernel: slots that the kernel fills and that are released in the same
/// order.
#[derive(Debug)]
struct Ring {
    memory: NonNull<u8>,
}

// SAFETY: the mapping belongs only to this value and does not move when the value changes threads.
unsafe impl Send for Ring {}

impl Ring {
    const LENGTH: usize = SLOTS * SLOT;

    fn map(socket: &OwnedFd) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of a packet socket whose ring has this length.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Ring::LENGTH,
                protection,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring {
            memory: NonNull::new(memory.cast()).expect("a mapping is not at 0"),
        })
    }

    fn is_filled(&self, slot: usize) -> bool {
        // Acquire: the kernel writes the status after the frame.
        self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    fn release(&self, slot: usize) {
        self.status(slot)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// Returns the frame in a filled slot.
    fn frame(&self, slot: usize, clocks: &Clocks) -> Result<Frame<'_>, FrameError> {
        let start = self.slot(slot);
        // SAFETY: a filled slot begins with the header, and is ours until it is released.
        let header: tpacket2_hdr = unsafe { start.cast().read() };
        if header.tp_snaplen < header.tp_len {
            return Err(FrameError::TooLarge);
        }
        let offset = usize::from(header.tp_mac);
        let length = header.tp_snaplen as usize;
        assert!(
            offset >= OFFLOAD_HEADER && offset + length <= SLOT,
            "the kernel keeps frames within their slots"
        );
        // SAFETY: the offload header and the frame lie within the slot, which stays ours while
        // `self` is borrowed: it is released only between two calls of the reader's closure.
        let (offload, bytes) = unsafe {
            let frame = start.add(offset);
            let offload = frame
                .sub(OFFLOAD_HEADER)
                .cast::<[u8; OFFLOAD_HEADER]>()
                .read();
            (offload, std::slice::from_raw_parts(frame.as_ptr(), length))
        };
        let [flags, segmentation, ..] = offload;
        if segmentation != 0 {
            return Err(FrameError::Gso);
        }
        Ok(Frame {
            arrived: clocks.monotonic(Duration::new(header.tp_sec.into(), header.tp_nsec)),
            bytes,
            vlan: vlan_tag(&header),
            checksum: Checksum::parse(flags, &offload),
        })
    }

    fn status(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: the status is the first word of the slot, aligned, and shared with the kernel,
        // which accesses it atomically.
        unsafe { AtomicU32::from_ptr(self.slot(slot).cast().as_ptr()) }
    }

    fn slot(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < SLOTS, "slot numbers wrap around");
        // SAFETY: the slot lies within the mapping.
        unsafe { self.memory.add(slot * SLOT) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nothing borrows from it any
        // more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), Ring::LENGTH) };
    }
}

fn vlan_tag(header: &tpacket2_hdr) -> Option<[u8; VLAN_TAG]> {
    if header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let [protocol_high, protocol_low] = header.tp_vlan_tpid.to_be_bytes();
    let [control_high, control_low] = header.tp_vlan_tci.to_be_bytes();
    Some([protocol_high, protocol_low, control_high, control_low])
}

/// A checksum left to the device: the sum of all bytes from `start` has yet to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checksum {
    start: usize,
    field: usize,
}

impl Checksum {
    fn parse(flags: u8, offload: &[u8; OFFLOAD_HEADER]) -> Option<Self> {
        const NEEDS_CHECKSUM: u8 = 1;
        let [.., start_low, start_high, offset_low, offset_high] = *offload;
        let start = usize::from(u16::from_ne_bytes([start_low, start_high]));
        let offset = usize::from(u16::from_ne_bytes([offset_low, offset_high]));
        (flags & NEEDS_CHECKSUM != 0).then_some(Checksum {
            start,
            field: start + offset,
        })
    }

    /// Completes the checksum. The field already holds the sum of the pseudo-header (RFC 1071;
    /// virtio 1.2, section 5.1.6.2).
    fn complete(self, frame: &mut [u8]) {
        let Some(covered) = frame.get(self.start..) else {
            return;
        };
        let words = covered
            .chunks(2)
            .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let checksum = match !(sum as u16) {
            // A UDP checksum of 0 means that there is none (RFC 768); the other zero of one's
            // complement does not.
            0 => 0xffff,
            checksum => checksum,
        };
        if let Some(field) = frame.get_mut(self.field..self.field + 2) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_left_to_the_device_is_completed() {
        // The example of RFC 1071, section 3, in place of a packet whose checksum is its last two
        // bytes.
        let mut frame = vec![
            0xee, 0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7, 0x00, 0x00,
        ];
        Checksum { start: 1, field: 9 }.complete(&mut frame);
        assert_eq!(frame[9..], [0x22, 0x0d]);
    }

    #[test]
    fn the_offload_header_says_where_the_checksum_goes() {
        let mut offload = [0; OFFLOAD_HEADER];
        offload[6..8].copy_from_slice(&34u16.to_ne_bytes());
        offload[8..10].copy_from_slice(&16u16.to_ne_bytes());
        assert_eq!(
            Checksum::parse(1, &offload),
            Some(Checksum {
                start: 34,
                field: 50
            })
        );
        assert_eq!(Checksum::parse(0, &offload), None);
    }
}

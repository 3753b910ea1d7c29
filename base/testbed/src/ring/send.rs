use super::{packet_socket, set_option};
use libc::{c_int, iovec, mmsghdr};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sends frames by a device.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
}

impl Sender {
    /// Maximum number of frames that one system call sends.
    pub const BATCH: usize = 32;

    pub(super) fn open(index: u32) -> io::Result<Self> {
        const RECEIVE_NOTHING: u16 = 0;
        let on: c_int = 1;
        let bypass = |socket: &OwnedFd| set_option(socket, libc::PACKET_QDISC_BYPASS, &on);
        Ok(Sender {
            socket: packet_socket(index, RECEIVE_NOTHING, bypass)?,
        })
    }

    /// Sends frames in order. Waits while the socket's send buffer is full of frames that the
    /// device's other end has not received yet. A frame that the kernel rejects is skipped, and the
    /// rest are still sent.
    ///
    /// # Errors
    /// The number of rejected frames, with the error of the last.
    pub fn send(&self, frames: &[Vec<u8>]) -> Result<(), (usize, io::Error)> {
        let mut rejected: Option<(usize, io::Error)> = None;
        let mut rest = frames;
        while !rest.is_empty() {
            match self.send_batch(&rest[..rest.len().min(Self::BATCH)]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    rejected = Some((rejected.map_or(0, |(count, _)| count) + 1, error));
                    rest = &rest[1..];
                }
            }
        }
        rejected.map_or(Ok(()), Err)
    }

    /// Sends at most `BATCH` frames. Returns the number sent, or the error of the first if none
    /// was.
    fn send_batch(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        // SAFETY: all bytes zero are valid `iovec` and `mmsghdr` values.
        let (mut pieces, mut messages): ([iovec; Self::BATCH], [mmsghdr; Self::BATCH]) =
            unsafe { zeroed() };
        for ((frame, piece), message) in frames.iter().zip(&mut pieces).zip(&mut messages) {
            *piece = iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            };
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: as many messages as frames were filled, and each points to a live frame that the
        // kernel only reads.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                frames.len() as u32,
                0,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

use super::{packet_socket, set_option};
use libc::{c_int, iovec, mmsghdr};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

/// The way out of a device.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
}

impl Sender {
    /// Frames that one system call sends at most.
    pub const BATCH: usize = 32;

    pub(super) fn open(index: u32) -> io::Result<Self> {
        const RECEIVE_NOTHING: u16 = 0;
        let on: c_int = 1;
        let bypass = |socket: &OwnedFd| set_option(socket, libc::PACKET_QDISC_BYPASS, &on);
        Ok(Sender {
            socket: packet_socket(index, RECEIVE_NOTHING, bypass)?,
        })
    }

    /// Sends frames in order. It waits while the socket's send buffer is full of frames that the device's other end has
    /// not received yet. A frame that the kernel refuses is left out and the rest still sent.
    ///
    /// # Errors
    /// How many were refused, with the last reason.
    pub fn send(&self, frames: &[Vec<u8>]) -> Result<(), (usize, io::Error)> {
        let mut refused: Option<(usize, io::Error)> = None;
        let mut rest = frames;
        while !rest.is_empty() {
            match self.send_batch(&rest[..rest.len().min(Self::BATCH)]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    refused = Some((refused.map_or(0, |(count, _)| count) + 1, error));
                    rest = &rest[1..];
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// How many of at most `BATCH` frames were sent; the error of the first when none was.
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
        // SAFETY: as many messages as frames were filled, and each points to a live frame that the kernel only reads.
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

//! Records that programs write.

use crate::table::{Plain, TableError, value_of};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;

/// The reader of a ring buffer that a program writes records of one type to.
#[derive(Debug)]
pub struct Records<T> {
    ring: RingBuffer<'static>,
    read: mpsc::Receiver<T>,
}

impl<T: Plain + Send + 'static> Records<T> {
    /// Creates the reader. A ring must have only one.
    pub fn map(table: &impl MapCore) -> Result<Self, TableError> {
        let failed = |source| TableError {
            table: table.name().to_string_lossy().into_owned(),
            source,
        };
        let (sender, read) = mpsc::channel();
        let mut builder = RingBufferBuilder::new();
        let take = move |record: &[u8]| {
            // The receiver lives as long as the ring, so sending cannot fail.
            let _ = sender.send(value_of(record));
            0
        };
        builder.add(table, take).map_err(failed)?;
        Ok(Records {
            ring: builder.build().map_err(failed)?,
            read,
        })
    }

    /// Returns the records that were written since the last call.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.ring
            .consume()
            .expect("records are taken without errors");
        self.read.try_iter()
    }
}

impl<T> AsFd for Records<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own, open as long as it is.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}

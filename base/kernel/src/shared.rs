//! Tables in memory that programs and this process have in common.

use crate::table::TableError;
use libbpf_rs::MapCore;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// The rows of an array that the kernel shares with this process (`BPF_F_MMAPABLE`).
///
/// A row may change at any time while it is read, so rows are handed out as pointers.
#[derive(Debug)]
pub struct Shared<T> {
    rows: NonNull<T>,
    count: usize,
}

// SAFETY: the mapping belongs to this value; the users of the row pointers are responsible for how
// they access rows.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Maps a table.
    ///
    /// # Panics
    /// If its rows are not of this type.
    pub fn map(table: &impl MapCore) -> Result<Self, TableError> {
        let count = table.max_entries() as usize;
        let size = table.value_size() as usize;
        assert_eq!(
            (size, size % 8),
            (size_of::<T>(), 0),
            "rows have the declared type, with no gap between them"
        );
        // SAFETY: a fresh shared mapping of a whole table, which is mappable by its flags.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size * count,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                table.as_fd().as_raw_fd(),
                0,
            )
        };
        let rows = NonNull::new(address.cast()).filter(|_| address != libc::MAP_FAILED);
        let rows = rows.ok_or_else(|| TableError {
            table: table.name().to_string_lossy().into_owned(),
            source: libbpf_rs::Error::from(io::Error::last_os_error()),
        })?;
        Ok(Shared { rows, count })
    }

    /// Returns the number of rows.
    #[allow(clippy::len_without_is_empty, reason = "no table is empty")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, index: usize) -> *mut T {
        assert!(index < self.count);
        // SAFETY: within the mapping.
        unsafe { self.rows.as_ptr().add(index) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; pointers to rows do not outlive their users'
        // borrow of this value.
        unsafe { libc::munmap(self.rows.as_ptr().cast(), size_of::<T>() * self.count) };
    }
}

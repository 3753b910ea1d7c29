//! Typed access to tables.

use libbpf_rs::{MapCore, MapFlags, Object, OpenObject};
use std::os::fd::AsFd;

/// A kernel table could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("table {table}: {source}")]
pub struct TableError {
    /// The table's name.
    pub table: String,
    /// The error from the kernel.
    pub source: libbpf_rs::Error,
}

/// A type that a program shares with this process and that may be copied to and from the kernel byte by byte.
///
/// # Safety
/// The type is `repr(C)`, every bit pattern is a value of it, and it has no padding.
pub unsafe trait Plain: Copy + Default {}

/// Declares types of a skeleton as [`Plain`](crate::table::Plain).
#[macro_export]
macro_rules! plain {
    ($($ty:ty),* $(,)?) => {
        // SAFETY: the headers of these types have only integers and explicit padding, and assert the sizes.
        $(unsafe impl $crate::table::Plain for $ty {})*
    };
}

plain!(u8, u32, u64, [u8; 16], [u32; 2], [u64; 2]);

/// Returns the bytes of a value.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` has no padding, so all of its bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Returns the value of which these are the bytes.
///
/// # Panics
/// If there are too few of them.
pub fn value_of<T: Plain>(bytes: &[u8]) -> T {
    assert!(
        bytes.len() >= size_of::<T>(),
        "a table's value has its declared size"
    );
    // SAFETY: the length was checked and every bit pattern is a value.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Typed access to a map.
pub trait Table: MapCore {
    /// Returns an error from libbpf as one of this table.
    fn failed(&self, source: libbpf_rs::Error) -> TableError {
        TableError {
            table: self.name().to_string_lossy().into_owned(),
            source,
        }
    }

    /// Sets a value.
    fn set<K: Plain, V: Plain>(&self, key: &K, value: &V) -> Result<(), TableError> {
        self.update(bytes_of(key), bytes_of(value), MapFlags::ANY)
            .map_err(|source| self.failed(source))
    }

    /// Returns a value of an array, in which every index exists.
    fn get<V: Plain>(&self, index: u32) -> Result<V, TableError> {
        Ok(self.find(index)?.unwrap_or_default())
    }

    /// Returns a value, if there is one of this key.
    fn find<V: Plain>(&self, key: u32) -> Result<Option<V>, TableError> {
        let found = self
            .lookup(bytes_of(&key), MapFlags::ANY)
            .map_err(|source| self.failed(source))?;
        Ok(found.as_deref().map(value_of))
    }

    /// Removes a value, if there is one.
    fn remove<K: Plain>(&self, key: &K) -> Result<(), TableError> {
        match self.delete(bytes_of(key)) {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            result => result.map_err(|source| self.failed(source)),
        }
    }

    /// Returns one value per possible CPU.
    fn per_cpu<V: Plain>(&self, index: u32) -> Result<Vec<V>, TableError> {
        let found = self
            .lookup_percpu(bytes_of(&index), MapFlags::ANY)
            .map_err(|source| self.failed(source))?
            .unwrap_or_default();
        Ok(found.iter().map(|bytes| value_of(bytes)).collect())
    }
}

impl<M: MapCore> Table for M {}

/// Makes an object that is about to be loaded use the tables of a loaded one. Constants, whose
/// names contain a dot, are not shared.
pub fn share_tables(open: &mut OpenObject, loaded: &Object) -> Result<(), libbpf_rs::Error> {
    for mut map in open
        .maps_mut()
        .filter(|map| !map.name().to_string_lossy().contains('.'))
    {
        if let Some(shared) = loaded.maps().find(|shared| shared.name() == map.name()) {
            map.reuse_fd(shared.as_fd())?;
        }
    }
    Ok(())
}

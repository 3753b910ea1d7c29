use hawser_kernel::table::{TableError, bytes_of};
use hawser_units::{MAX_PATHS, PathId};
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// One device map for every set of paths that a packet may be broadcast to. All are created at
/// once, because changing the table of sets makes the kernel wait for packets in progress; changing
/// the contents of a set does not.
pub(crate) struct PathSets(Vec<MapHandle>);

/// The last index of the table, whose bits are the paths.
const LAST: u8 = u8::MAX;
const _: () = assert!(MAX_PATHS == u8::BITS as usize);

impl PathSets {
    /// Creates empty sets and stores them in the table of sets.
    pub(crate) fn create(table: &impl MapCore) -> Result<Self, TableError> {
        let sets: Vec<_> = (1..=LAST)
            .map(|_| empty_set())
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let keys: Vec<u8> = (1..=LAST)
            .flat_map(|bits| u32::from(bits).to_ne_bytes())
            .collect();
        let values: Vec<u8> = sets
            .iter()
            .flat_map(|set| set.as_fd().as_raw_fd().to_ne_bytes())
            .collect();
        table
            .update_batch(
                &keys,
                &values,
                u32::from(LAST),
                MapFlags::ANY,
                MapFlags::ANY,
            )
            .map_err(failed)?;
        Ok(PathSets(sets))
    }

    /// Adds a path to every set whose index contains it, or removes it from them. `end` is the
    /// device and the program that writes the path's headers.
    pub(crate) fn set(
        &self,
        path: PathId,
        end: Option<(u32, BorrowedFd<'_>)>,
    ) -> Result<(), TableError> {
        let index = path.index() as u32;
        let holding = (1..=LAST)
            .zip(&self.0)
            .filter(|(bits, _)| bits & 1 << index != 0);
        for (_, set) in holding {
            match end {
                // struct bpf_devmap_val: the interface, then the program's descriptor
                Some((ifindex, program)) => {
                    let value = [ifindex, program.as_raw_fd() as u32]
                        .map(u32::to_ne_bytes)
                        .concat();
                    set.update(bytes_of(&index), &value, MapFlags::ANY)
                }
                None => set.delete(bytes_of(&index)),
            }
            .map_err(failed)?;
        }
        Ok(())
    }
}

fn empty_set() -> Result<MapHandle, libbpf_rs::Error> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
        ..Default::default()
    };
    let (index_bytes, row_bytes) = (4, 8);
    MapHandle::create(
        MapType::Devmap,
        Some("path_set"),
        index_bytes,
        row_bytes,
        MAX_PATHS as u32,
        &options,
    )
}

fn failed(source: libbpf_rs::Error) -> TableError {
    TableError {
        table: "path_set".to_owned(),
        source,
    }
}

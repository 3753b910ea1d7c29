use crate::LoadError;
use crate::skeleton::device_drops::{DeviceDropsSkel, DeviceDropsSkelBuilder};
use crate::table::{Table, TableError};
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;

/// Counts the copies that the devices of paths refuse: their queue was full, or they were down.
///
/// It watches the kernel's own trace of redirected frames, so it needs nothing of the programs that send them.
pub(crate) struct DeviceDrops {
    skeleton: DeviceDropsSkel<'static>,
    _link: Link,
}

impl DeviceDrops {
    /// Watches devices of the network namespace that the calling thread is in.
    pub(crate) fn watch() -> Result<Self, LoadError> {
        // The skeleton borrows its object; a process loads one, so the few bytes may as well stay until it ends.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let failed = LoadError::of("device_drops");
        let mut open = DeviceDropsSkelBuilder::default()
            .open(storage)
            .map_err(&failed)?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        let namespace =
            std::fs::metadata("/proc/thread-self/ns/net").map_err(libbpf_rs::Error::from);
        // The kernel keeps the number of a namespace in 32 bits.
        rodata.own_namespace = namespace.map_err(&failed)?.ino() as u32;
        let skeleton = open.load().map_err(&failed)?;
        let link = skeleton
            .progs
            .count_device_drops
            .attach()
            .map_err(&failed)?;
        Ok(DeviceDrops {
            skeleton,
            _link: link,
        })
    }

    /// Begins to count for a device; does nothing when it is counted already.
    pub(crate) fn add(&self, ifindex: u32) -> Result<(), TableError> {
        match self.count(ifindex)? {
            Some(_) => Ok(()),
            None => self.skeleton.maps.device_drops.set(&ifindex, &0u64),
        }
    }

    /// Copies that the device has refused since it was added; `None` before.
    pub(crate) fn count(&self, ifindex: u32) -> Result<Option<u64>, TableError> {
        self.skeleton.maps.device_drops.find(ifindex)
    }

    /// Ends counting for a device; the copies that it has refused since it was added.
    pub(crate) fn remove(&self, ifindex: u32) -> Result<u64, TableError> {
        let refused = self.count(ifindex)?.unwrap_or(0);
        self.skeleton.maps.device_drops.remove(&ifindex)?;
        Ok(refused)
    }
}

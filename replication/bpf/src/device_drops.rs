use crate::LoadError;
use crate::skeleton::device_drops::{DeviceDropsSkel, DeviceDropsSkelBuilder};
use hawser_kernel::program::open;
use hawser_kernel::table::{Table, TableError, share_tables};
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{Link, Object};
use std::os::unix::fs::MetadataExt;

/// Counts the copies that the devices of paths drop because their queue is full or they are down.
///
/// It attaches to the kernel's tracepoints for redirected frames and for dropped packets, so the
/// sending programs need no support for it.
pub(crate) struct DeviceDrops {
    skeleton: DeviceDropsSkel<'static>,
    _links: [Link; 2],
}

impl DeviceDrops {
    /// Starts watching devices of the calling thread's network namespace, with the tables of the
    /// sending programs.
    pub(crate) fn watch(sending: &Object, port: u16) -> Result<Self, LoadError> {
        let failed = LoadError::of("device_drops");
        let mut open = open::<DeviceDropsSkelBuilder>().map_err(&failed)?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        let namespace =
            std::fs::metadata("/proc/thread-self/ns/net").map_err(libbpf_rs::Error::from);
        // The kernel stores the number of a namespace in 32 bits.
        rodata.port = port;
        rodata.own_namespace = namespace.map_err(&failed)?.ino() as u32;
        share_tables(open.open_object_mut(), sending).map_err(&failed)?;
        let skeleton = open.load().map_err(&failed)?;
        let programs = &skeleton.progs;
        let frames = programs.count_device_drops.attach().map_err(&failed)?;
        let packets = programs.count_queue_drops.attach().map_err(&failed)?;
        Ok(DeviceDrops {
            skeleton,
            _links: [frames, packets],
        })
    }

    /// Starts counting for a device. Does nothing if it is already counted.
    pub(crate) fn add(&self, ifindex: u32) -> Result<(), TableError> {
        match self.count(ifindex)? {
            Some(_) => Ok(()),
            None => self.skeleton.maps.device_drops.set(&ifindex, &0u64),
        }
    }

    /// Returns the copies that the device has dropped since it was added; `None` if it was not
    /// added.
    pub(crate) fn count(&self, ifindex: u32) -> Result<Option<u64>, TableError> {
        self.skeleton.maps.device_drops.find(ifindex)
    }

    /// Stops counting for a device. Returns the copies that it has dropped since it was added.
    pub(crate) fn remove(&self, ifindex: u32) -> Result<u64, TableError> {
        let dropped = self.count(ifindex)?.unwrap_or(0);
        self.skeleton.maps.device_drops.remove(&ifindex)?;
        Ok(dropped)
    }
}

use crate::program::{RunError, TestRun, fd, log_libbpf, test_run};
use crate::selector::Prefix;
use crate::sender::family_and_address;
use crate::skeleton::fallback::{FallbackSkel, FallbackSkelBuilder, types};
use crate::table::{Table, TableError, plain};
use crate::{AttachError, Link, LoadError};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use std::mem::MaybeUninit;
use std::net::IpAddr;

plain!(types::selector_key, types::fallback, types::fallback_stats);

/// The way out of a device that leads nowhere, for packets that are not replicated there.
pub struct Fallback {
    skeleton: FallbackSkel<'static>,
    link: Option<Link>,
}

/// Counters of what was not replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FallbackStats {
    /// Packets, or trains of segments, that took an uplink.
    pub taken: u64,
    /// Those that no uplink was known for.
    pub dropped: u64,
}

impl Fallback {
    /// Loads the program. Its attachment ends with this value.
    pub fn load() -> Result<Self, LoadError> {
        log_libbpf();
        // The skeleton borrows its object; a process loads one, so the few bytes may as well stay until it ends.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let failed = LoadError::of("fallback");
        let skeleton = FallbackSkelBuilder::default()
            .open(storage)
            .map_err(&failed)?
            .load()
            .map_err(&failed)?;
        Ok(Fallback {
            skeleton,
            link: None,
        })
    }

    /// Handles what leaves by `ifindex` and no program before it has sent elsewhere; no other interface any more.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), AttachError> {
        self.link = Some(Link::tcx_egress(
            fd(&self.skeleton.progs.take_fallback),
            ifindex,
        )?);
        Ok(())
    }

    /// Packets to `destination` leave by `uplink`, an interface and a next hop on its link; without one they are dropped.
    pub fn set(
        &self,
        destination: Prefix,
        uplink: Option<(u32, IpAddr)>,
    ) -> Result<(), TableError> {
        let table = &self.skeleton.maps.fallbacks;
        let (prefix_bits, address) = destination.key();
        let key = types::selector_key {
            prefix_bits,
            address,
        };
        let Some((ifindex, gateway)) = uplink else {
            return table.remove(&key);
        };
        let (family, next_hop) = family_and_address(gateway);
        table.set(
            &key,
            &types::fallback {
                ifindex,
                family: family.into(),
                next_hop,
            },
        )
    }

    /// Runs the program on a frame without a network.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.skeleton.progs.take_fallback, frame, repeat)
    }

    /// Counters, summed over CPUs.
    pub fn stats(&self) -> Result<FallbackStats, TableError> {
        let rows = self
            .skeleton
            .maps
            .fallback_stats
            .per_cpu::<types::fallback_stats>(0)?;
        Ok(FallbackStats {
            taken: rows.iter().map(|row| row.taken).sum(),
            dropped: rows.iter().map(|row| row.dropped).sum(),
        })
    }
}

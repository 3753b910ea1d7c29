use crate::selector::Prefix;
use crate::skeleton::fallback::{FallbackSkel, FallbackSkelBuilder, types};
use crate::{AttachError, Link, LoadError};
use hawser_kernel::address::family_and_address;
use hawser_kernel::plain;
use hawser_kernel::program::{RunError, TestRun, fd, open, test_run};
use hawser_kernel::table::{Table, TableError};
use libbpf_rs::skel::OpenSkel;
use std::net::IpAddr;

plain!(types::selector_key, types::fallback, types::fallback_stats);

/// Forwards packets that a device without a link does not replicate.
pub struct Fallback {
    skeleton: FallbackSkel<'static>,
    link: Option<Link>,
}

/// Counters of packets that were not replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FallbackStats {
    /// Packets, GSO packets counting once, that took an uplink.
    pub taken: u64,
    /// Packets without a known uplink.
    pub dropped: u64,
}

impl Fallback {
    /// Loads the program. Its attachment ends when this value is dropped.
    pub fn load() -> Result<Self, LoadError> {
        let failed = LoadError::of("fallback");
        let skeleton = open::<FallbackSkelBuilder>()
            .map_err(&failed)?
            .load()
            .map_err(&failed)?;
        Ok(Fallback {
            skeleton,
            link: None,
        })
    }

    /// Handles packets that leave by `ifindex` and that no earlier program has redirected. Replaces
    /// the previous interface.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), AttachError> {
        self.link = Some(Link::tcx_egress(
            fd(&self.skeleton.progs.take_fallback),
            ifindex,
        )?);
        Ok(())
    }

    /// Sends packets to `destination` by `uplink`, an interface and a next hop on its link; drops
    /// them if it is `None`.
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

    /// Returns the counters, summed over CPUs.
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

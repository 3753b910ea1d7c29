use crate::skeleton::replicate_xdp::types::{self, limit};
use hawser_kernel::plain;
use hawser_kernel::shared::Shared;
use hawser_kernel::table::{TableError, bytes_of, value_of};
use hawser_units::{FlowId, PathSet, PolicyCode};
use libbpf_rs::MapCore;
use std::sync::atomic::{AtomicU64, Ordering};

plain!(types::policy);

/// The largest exponent of the probing interval: one packet in 2^15.
const PROBE_SHIFT_MAX: u8 = limit::PROBE_SHIFT_MAX.0 as u8;

/// The paths of a flow's packets, with the policy's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendPolicy {
    /// The paths that every packet takes.
    pub code: PolicyCode,
    /// The paths that one packet in `probe_every` takes in addition. A flow that is off or
    /// transparent is not probed.
    pub probes: PathSet,
    /// The probing interval in packets: a power of two from 2 to 32,768, or 0 if nothing is probed.
    pub probe_every: u16,
    /// The epoch: a newer policy of a flow has a greater one. Its low byte is in every shim.
    pub epoch: u32,
}

/// The reason that a policy cannot be put into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The probing interval is not a power of two.
    #[error(
        "one packet in {0} cannot be probed: the number must be a power of two from 2 to 32768, or 0 for none"
    )]
    ProbeEvery(u16),
}

impl SendPolicy {
    fn word(self) -> Result<u64, PolicyError> {
        let probe_shift = match self.probe_every {
            0 => 0,
            every if every > 1 && every.is_power_of_two() => every.trailing_zeros() as u8,
            every => return Err(PolicyError::ProbeEvery(every)),
        };
        let (code, probes, epoch) = (self.code.0, self.probes.bits(), self.epoch);
        let row = types::policy {
            code,
            probes,
            probe_shift,
            reserved: 0,
            epoch,
        };
        Ok(u64::from_ne_bytes(
            bytes_of(&row).try_into().expect("a policy is one word"),
        ))
    }

    fn from_word(word: u64) -> Self {
        let row: types::policy = value_of(&word.to_ne_bytes());
        let probe_every = match row.probe_shift {
            0 => 0,
            shift => 1 << shift.min(PROBE_SHIFT_MAX),
        };
        SendPolicy {
            code: PolicyCode(row.code),
            probes: PathSet::from_bits(row.probes),
            probe_every,
            epoch: row.epoch,
        }
    }
}

/// The policies in force. Each is one word, which the programs read, and in-band signals change,
/// concurrently.
pub(crate) struct Policies(Shared<AtomicU64>);

impl Policies {
    pub(crate) fn map(table: &impl MapCore) -> Result<Self, TableError> {
        Ok(Policies(Shared::map(table)?))
    }

    pub(crate) fn get(&self, flow: FlowId) -> SendPolicy {
        SendPolicy::from_word(self.row(flow).load(Ordering::Relaxed))
    }

    pub(crate) fn replace(&self, flow: FlowId, policy: SendPolicy) -> Result<(), PolicyError> {
        self.row(flow).store(policy.word()?, Ordering::Release);
        Ok(())
    }

    /// Replaces an older policy. Returns `false` if the policy in force has the same or a greater
    /// epoch.
    pub(crate) fn advance(&self, flow: FlowId, policy: SendPolicy) -> Result<bool, PolicyError> {
        let next = policy.word()?;
        let newer = |word| (policy.epoch > SendPolicy::from_word(word).epoch).then_some(next);
        Ok(self
            .row(flow)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, newer)
            .is_ok())
    }

    fn row(&self, flow: FlowId) -> &AtomicU64 {
        // SAFETY: an aligned row of the mapping, which both sides access as one word.
        unsafe { &*self.0.row(flow.index()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_what_its_word_says() {
        for probe_every in [0, 2, 64, 32_768] {
            let probes = PathSet::from_bits(0b110);
            let policy = SendPolicy {
                code: PolicyCode(1),
                probes,
                probe_every,
                epoch: u32::MAX,
            };
            assert_eq!(SendPolicy::from_word(policy.word().unwrap()), policy);
        }
        for probe_every in [1, 3, 100, u16::MAX] {
            let policy = SendPolicy {
                probe_every,
                ..SendPolicy::default()
            };
            assert_eq!(policy.word(), Err(PolicyError::ProbeEvery(probe_every)));
        }
    }
}

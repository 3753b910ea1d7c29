//! The numbers under which the rate control knows the packets of media.

use hawser_congestion::Acked;
use hawser_objects::Outcome;
use hawser_units::Instant;
use hawser_wire::media::PacketId;
use std::collections::BTreeMap;

/// The number of packets that are remembered.
const CAPACITY: usize = 32_768;

/// Gives each transmission a number, and finds the number of what was reported.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    next: u64,
    newest: BTreeMap<PacketId, u64>,
}

impl Ledger {
    /// Returns the number of the transmission of a packet.
    pub(super) fn number(&mut self, packet: PacketId) -> u64 {
        self.next += 1;
        self.newest.insert(packet, self.next);
        if self.newest.len() > CAPACITY {
            self.newest.pop_first();
        }
        self.next
    }

    /// Returns the packets that arrived and the numbers of those that were lost. `reported` is the
    /// time of the report by the viewer's clock.
    pub(super) fn settle(
        &mut self,
        reported: Instant,
        outcome: &Outcome,
    ) -> (Vec<Acked>, Vec<u64>) {
        let acknowledged = outcome.acknowledged.iter().filter_map(|packet| {
            let number = self.newest.remove(&packet.id)?;
            let held = reported.saturating_since(packet.arrived?);
            let ecn = packet.ecn;
            Some(Acked { number, held, ecn })
        });
        let acked = acknowledged.collect();
        let lost = outcome.lost.iter();
        let lost = lost.filter_map(|packet| self.newest.get(&packet.id).copied());
        (acked, lost.collect())
    }
}

//! Numbered datagrams in both directions, which show what is lost.

use super::machines::Machines;
use crate::rig::StopOnDrop;
use hawser_testbed::topology::Stop;
use hawser_testbed::traffic::{self, Endpoints, Family, Kind, Stream};
use std::net::Ipv6Addr;
use std::thread;
use std::time::Duration;

/// The rate of each direction, packets per second.
pub(super) const RATE_PPS: u32 = 500;

/// The time that datagrams have to arrive after the senders have stopped.
const GRACE: Duration = Duration::from_millis(300);

pub(super) struct Datagrams([Endpoints; 2]);

impl Datagrams {
    pub(super) fn between(machines: &Machines) -> Self {
        let (publisher, viewer) = (&machines.publisher, &machines.viewer);
        let ends = |(from, to, address): (&super::Machine, &super::Machine, [u8; 4])| Endpoints {
            source: from.namespace.clone(),
            viewer: to.namespace.clone(),
            viewer_v4: address.into(),
            viewer_v6: Ipv6Addr::UNSPECIFIED,
        };
        Datagrams(
            [
                (publisher, viewer, [10, 99, 0, 2]),
                (viewer, publisher, [10, 99, 0, 1]),
            ]
            .map(ends),
        )
    }

    /// Returns how many datagrams do not arrive while `act` acts.
    pub(super) fn lost(&self, act: impl FnOnce()) -> u64 {
        let stop = Stop::default();
        let streams = [Stream {
            kind: Kind::UdpConnected,
            family: Family::Ipv4,
            packets: 1_000_000,
            rate_pps: RATE_PPS,
            payload_bytes: 200,
        }];
        thread::scope(|scope| {
            // Stops the traffic even if `act` panics.
            let _ends = StopOnDrop(stop.clone());
            let run = |ends| traffic::run(ends, &streams, GRACE, &stop).unwrap();
            let running = self.0.each_ref().map(|ends| scope.spawn(move || run(ends)));
            act();
            stop.request();
            let reports = running.map(|running| running.join().unwrap().remove(0));
            for report in &reports {
                let is_sound = report.error.is_none() && report.sent > 0;
                assert!(is_sound && report.receiver_overflow == 0, "{report:?}");
            }
            reports.iter().map(|report| report.missing).sum()
        })
    }
}

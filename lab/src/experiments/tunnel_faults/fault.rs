use anyhow::Result;
use hawser_netem::{Delay, LinkConfig, QueueLimit, Rate, Span, Steps};
use hawser_units::{Bitrate, ByteSize};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The number of uplinks of the car.
pub(super) const UPLINKS: usize = 4;

/// The rate of each uplink in either direction, and its rate while throttled, Mb/s.
const RATE_MBPS: f64 = 20.0;
const THROTTLED_MBPS: f64 = 1.0;

/// The queue of each uplink: 60 ms at its rate, and one second while throttled.
const QUEUE: QueueLimit = QueueLimit::Bytes(ByteSize(150_000));

/// The one-way delays of the uplinks, milliseconds.
const DELAYS_MS: [u64; UPLINKS] = [15, 20, 25, 30];

/// A kind of fault of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// The interface has no carrier.
    LinkDown,
    /// The uplink drops all packets, which the client's interface does not show.
    Silent,
    /// The interface gets another address.
    Readdressed,
    /// The carrier's NAT loses its state, and uses another address and other ports.
    Rebound,
    /// The uplink has a twentieth of its rate.
    Throttled,
}

impl Fault {
    pub(super) const ALL: [Fault; 5] = [
        Fault::LinkDown,
        Fault::Silent,
        Fault::Readdressed,
        Fault::Rebound,
        Fault::Throttled,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::LinkDown => "link-down",
            Fault::Silent => "silent",
            Fault::Readdressed => "readdressed",
            Fault::Rebound => "rebound",
            Fault::Throttled => "throttled",
        }
    }
}

/// A fault of an uplink, with its schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) fault: Fault,
    pub(super) uplink: usize,
    /// The start and the end of the fault.
    pub(super) from: Duration,
    pub(super) to: Duration,
    /// The start of the next fault.
    pub(super) until: Duration,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uplink {} {}", self.uplink + 1, self.fault.name())
    }
}

/// Returns a schedule of each fault of each uplink in turn, over `length`. A fault lasts for the
/// first half of its slot; in the second half the uplink works again.
pub(super) fn plan(faults: &[Fault], length: Duration) -> Vec<Planned> {
    let all = (0..UPLINKS).flat_map(|uplink| faults.iter().map(move |fault| (uplink, *fault)));
    let slot = length / u32::try_from(faults.len() * UPLINKS).expect("a few faults");
    let planned = |(number, (uplink, fault)): (u32, (usize, Fault))| {
        let from = slot * number;
        Planned {
            fault,
            uplink,
            from,
            to: from + slot / 2,
            until: from + slot,
        }
    };
    (0..).zip(all).map(planned).collect()
}

/// Returns the emulated link of an uplink, the same in either direction.
pub(super) fn link(plan: &[Planned], uplink: usize) -> Result<LinkConfig> {
    let of = |fault| {
        plan.iter()
            .filter(move |one| one.uplink == uplink && one.fault == fault)
    };
    let cuts = of(Fault::Silent)
        .map(|one| Span::new(one.from, one.to))
        .collect::<Result<_, _>>()?;
    let mut rates = vec![(Duration::ZERO, Bitrate::from_mbps(RATE_MBPS))];
    for one in of(Fault::Throttled) {
        rates.retain(|(at, _)| *at != one.from);
        rates.push((one.from, Bitrate::from_mbps(THROTTLED_MBPS)));
        rates.push((one.to, Bitrate::from_mbps(RATE_MBPS)));
    }
    Ok(LinkConfig {
        rate: Some(Rate::Steps(Steps::new(rates)?)),
        queue: Some(QUEUE),
        delay: Delay::Constant(Duration::from_millis(DELAYS_MS[uplink])),
        cuts,
        ..LinkConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_uplink_fails_in_every_way_one_at_a_time() {
        let plan = plan(&Fault::ALL, Duration::from_secs(100));
        assert_eq!(plan.len(), 20);
        assert!(
            plan.windows(2)
                .all(|pair| pair[0].to < pair[1].from && pair[0].until == pair[1].from)
        );
        for uplink in 0..UPLINKS {
            let link = link(&plan, uplink).unwrap();
            assert_eq!(link.cuts.len(), 1);
            let Some(Rate::Steps(rates)) = link.rate else {
                panic!("the rate changes")
            };
            assert_eq!(rates.values().filter(|rate| rate.mbps() < 2.0).count(), 1);
        }
    }

    #[test]
    fn a_link_may_be_throttled_from_the_beginning() {
        let plan = plan(&[Fault::Throttled], Duration::from_secs(4));
        assert!(link(&plan, 0).is_ok());
    }
}

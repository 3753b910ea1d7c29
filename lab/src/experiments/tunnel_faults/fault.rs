use anyhow::Result;
use hawser_netem::{Delay, LinkConfig, Loss, LossAt, Probability, QueueLimit, Rate, Span, Steps};
use hawser_units::{Bitrate, ByteSize};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// The number of uplinks of the car.
pub(super) const UPLINKS: usize = 4;

/// The rate of each uplink in either direction, and its rate while throttled, Mb/s.
const RATE_MBPS: f64 = 20.0;
const THROTTLED_MBPS: f64 = 1.0;

/// The share of packets that a lossy uplink loses, and the mean length of a burst of them.
const LOSS: f64 = 0.1;
const BURST_PACKETS: NonZeroU32 = NonZeroU32::new(5).unwrap();

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
    /// The uplink loses a tenth of the packets, in bursts.
    Lossy,
}

/// Under which circumstances uplinks fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Circumstances {
    /// One uplink at a time.
    Single,
    /// Two uplinks at once, in the same way.
    Pairs,
    /// One uplink at a time, while uploads compete with the applications.
    Loaded,
}

impl Circumstances {
    pub(super) const ALL: [Circumstances; 3] = [
        Circumstances::Single,
        Circumstances::Pairs,
        Circumstances::Loaded,
    ];

    /// Returns the name of the case with all kinds of faults.
    pub(super) fn name(self) -> &'static str {
        match self {
            Circumstances::Single => "uplinks",
            Circumstances::Pairs => "pairs",
            Circumstances::Loaded => "loaded",
        }
    }

    /// Returns the groups of uplinks that fail at once.
    fn groups(self) -> Vec<Vec<usize>> {
        let pair = |uplink| vec![uplink, (uplink + 1) % UPLINKS];
        match self {
            Circumstances::Pairs => (0..UPLINKS).map(pair).collect(),
            _ => (0..UPLINKS).map(|uplink| vec![uplink]).collect(),
        }
    }
}

impl Fault {
    pub(super) const ALL: [Fault; 6] = [
        Fault::LinkDown,
        Fault::Silent,
        Fault::Readdressed,
        Fault::Rebound,
        Fault::Throttled,
        Fault::Lossy,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::LinkDown => "link-down",
            Fault::Silent => "silent",
            Fault::Readdressed => "readdressed",
            Fault::Rebound => "rebound",
            Fault::Throttled => "throttled",
            Fault::Lossy => "lossy",
        }
    }
}

/// A fault of one uplink or more, with its schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) fault: Fault,
    pub(super) uplinks: Vec<usize>,
    /// The start and the end of the fault.
    pub(super) from: Duration,
    pub(super) to: Duration,
    /// The start of the next fault.
    pub(super) until: Duration,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.uplinks.iter().map(|uplink| (uplink + 1).to_string());
        let numbers = numbers.collect::<Vec<_>>().join(" and ");
        write!(f, "uplink {numbers} {}", self.fault.name())
    }
}

/// Returns a schedule of each fault of each group of uplinks in turn, over `length`. A fault lasts
/// for the first half of its slot; in the second half the uplinks work again.
pub(super) fn plan(
    faults: &[Fault],
    circumstances: Circumstances,
    length: Duration,
) -> Vec<Planned> {
    let groups = circumstances.groups();
    let slot = length / u32::try_from(faults.len() * groups.len()).expect("a few faults");
    let with_all = |group: Vec<usize>| faults.iter().map(move |fault| (group.clone(), *fault));
    let all = groups.into_iter().flat_map(with_all);
    let planned = |(number, (uplinks, fault)): (u32, (Vec<usize>, Fault))| {
        let from = slot * number;
        Planned {
            fault,
            uplinks,
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
            .filter(move |one| one.uplinks.contains(&uplink) && one.fault == fault)
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
    let mut shares = BTreeMap::from([(Duration::ZERO, Probability::default())]);
    for one in of(Fault::Lossy) {
        shares.insert(one.from, LOSS.try_into()?);
        shares.insert(one.to, Probability::default());
    }
    let loss = Loss::Bursts {
        steps: Steps::new(shares.into_iter().collect())?,
        mean_packets: BURST_PACKETS,
    };
    Ok(LinkConfig {
        loss: Some(loss),
        loss_at: LossAt::Exit,
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
        let plan = plan(&Fault::ALL, Circumstances::Single, Duration::from_secs(100));
        assert_eq!(plan.len(), 24);
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
            let Some(Loss::Bursts { steps, .. }) = link.loss else {
                panic!("the share of lost packets changes")
            };
            let lossy = steps.values().filter(|share| share.get() > 0.0);
            assert_eq!(lossy.count(), 1);
        }
    }

    #[test]
    fn every_uplink_fails_with_either_neighbour() {
        let plan = plan(&Fault::ALL, Circumstances::Pairs, Duration::from_secs(100));
        for uplink in 0..UPLINKS {
            let with: Vec<_> = plan
                .iter()
                .filter(|one| one.fault == Fault::Silent && one.uplinks.contains(&uplink))
                .collect();
            assert_eq!(with.len(), 2);
            assert!(with.iter().all(|one| one.uplinks.len() == 2));
            assert_eq!(link(&plan, uplink).unwrap().cuts.len(), 2);
        }
    }

    #[test]
    fn a_link_may_be_throttled_from_the_beginning() {
        for fault in [Fault::Throttled, Fault::Lossy] {
            let plan = plan(&[fault], Circumstances::Single, Duration::from_secs(4));
            assert!(link(&plan, 0).is_ok());
        }
    }
}

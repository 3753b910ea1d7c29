//! Uplinks whose network carries less than their interface, as the handshake with a full packet
//! finds it: which MTU they are used with, and when a larger one is tried again, as RFC 8899 asks
//! for (`PMTU_RAISE_TIMER`, section 5.1.1).
//!
//! An uplink is narrowed and tried again by changing its MTU. The supervisor makes a connection with
//! the new one, beside the one in use if there is one.

use super::sizes::{MTUS, Sizes, is_same, network_of};
use hawser_units::Instant;
use hawser_uplinks::Uplink;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tracing::info;

/// The time for which an uplink has its whole MTU when that is tried again: enough for one
/// connection, also over TCP, and too short for a second one after that has failed.
const TRIAL: Duration = Duration::from_secs(15);

/// The uplinks that are used with a smaller MTU, by interface.
#[derive(Debug)]
pub(super) struct NarrowUplinks {
    retry_every: Duration,
    limits: BTreeMap<String, Limit>,
    /// The limits with which connections were made.
    sizes: Sizes,
}

#[derive(Debug)]
struct Limit {
    mtu: u16,
    /// The network of the uplink.
    network: Vec<IpAddr>,
    /// When the next trial of the whole MTU begins; in the past while there is one.
    retry_at: Instant,
}

impl NarrowUplinks {
    /// `retry_every` is the time between trials; more than [`TRIAL`]. `sizes` are what networks carried
    /// before.
    pub(super) fn new(retry_every: Duration, sizes: Sizes) -> NarrowUplinks {
        NarrowUplinks {
            retry_every,
            limits: BTreeMap::new(),
            sizes,
        }
    }

    /// Returns what is to be known after a restart.
    pub(super) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Limits an uplink whose packets of `mtu` bytes did not arrive while small ones did. Without a
    /// smaller MTU to try, it begins with its whole one again.
    pub(super) fn narrow(&mut self, now: Instant, uplink: &Uplink, mtu: u16) {
        let retry_at = now + self.retry_every;
        let known = self.limits.get_mut(&uplink.interface);
        if let Some(known) = known.filter(|known| known.mtu < mtu) {
            known.retry_at = retry_at;
            return;
        }
        let Some(mtu) = smaller_mtus(mtu).next() else {
            self.forget(uplink);
            return;
        };
        let interface = &uplink.interface;
        info!(interface, mtu_bytes = mtu, "trying smaller packets");
        self.set(uplink, mtu, retry_at);
    }

    /// Limits an uplink on which packets of more than `mtu` bytes do not arrive any more. There may be no
    /// smaller MTU.
    pub(super) fn shrink(&mut self, now: Instant, uplink: &Uplink, mtu: u16) {
        let above = mtu.saturating_add(1);
        if smaller_mtus(above).next().is_some() {
            self.narrow(now, uplink, above);
        }
    }

    /// Limits an uplink to its MTU, with which a connection was made after larger packets did not
    /// arrive.
    pub(super) fn fit(&mut self, now: Instant, uplink: &Uplink) {
        let known = self.limits.get(&uplink.interface);
        if known.is_none_or(|known| uplink.mtu < known.mtu || known.retry_at <= now) {
            let (interface, mtu_bytes) = (&uplink.interface, uplink.mtu);
            info!(
                interface,
                mtu_bytes, "larger packets do not arrive: using smaller ones"
            );
            self.set(uplink, uplink.mtu, now + self.retry_every);
            self.sizes.set(uplink, uplink.mtu);
        }
    }

    fn set(&mut self, uplink: &Uplink, mtu: u16, retry_at: Instant) {
        let limit = Limit {
            mtu,
            network: network_of(uplink),
            retry_at,
        };
        self.limits.insert(uplink.interface.clone(), limit);
    }

    fn forget(&mut self, uplink: &Uplink) {
        self.limits.remove(&uplink.interface);
        self.sizes.forget(uplink);
    }

    /// Takes note that full packets of an uplink, with its MTU at that time, arrive.
    pub(super) fn confirm(&mut self, uplink: &Uplink) {
        let Some(limit) = self.limits.get(&uplink.interface) else {
            return;
        };
        match uplink.mtu.cmp(&limit.mtu) {
            Ordering::Greater => {
                info!(
                    interface = uplink.interface,
                    mtu_bytes = uplink.mtu,
                    "larger packets arrive"
                );
                self.forget(uplink);
            }
            Ordering::Equal => self.sizes.set(uplink, uplink.mtu),
            Ordering::Less => {}
        }
    }

    /// Returns whether a larger MTU is being tried on an uplink.
    pub(super) fn is_trial(&self, now: Instant, interface: &str) -> bool {
        let limit = self.limits.get(interface);
        limit.is_some_and(|limit| limit.retry_at <= now)
    }

    /// Returns whether an uplink has the MTU that it was limited to.
    pub(super) fn is_limited(&self, uplink: &Uplink) -> bool {
        let limit = self.limits.get(&uplink.interface);
        limit.is_some_and(|limit| limit.mtu == uplink.mtu)
    }

    /// Limits the MTUs of uplinks, except during trials.
    pub(super) fn limit(&mut self, now: Instant, mut uplinks: Vec<Uplink>) -> Vec<Uplink> {
        for uplink in &mut uplinks {
            self.follow_network(now, uplink);
            self.follow_interface(uplink);
            let Some(limit) = self.limits.get_mut(&uplink.interface) else {
                continue;
            };
            if now >= limit.retry_at + TRIAL {
                limit.retry_at = now + self.retry_every;
            }
            if now < limit.retry_at {
                uplink.mtu = uplink.mtu.min(limit.mtu);
            }
        }
        uplinks
    }

    /// Forgets a limit that is not below the MTU of the interface itself: when that is larger again, all
    /// of it is used.
    fn follow_interface(&mut self, uplink: &Uplink) {
        let limit = self.limits.get(&uplink.interface);
        if limit.is_some_and(|limit| uplink.mtu <= limit.mtu) {
            self.limits.remove(&uplink.interface);
        }
    }

    /// Begins with what an uplink's network carried before, or else with the whole MTU, when the uplink
    /// appears and in another network.
    fn follow_network(&mut self, now: Instant, uplink: &Uplink) {
        let interface = &uplink.interface;
        let known = self.limits.get(interface);
        if known.is_some_and(|known| is_same(&known.network, &network_of(uplink))) {
            return;
        }
        self.limits.remove(interface);
        if let Some(mtu) = self.sizes.get(uplink).filter(|mtu| *mtu < uplink.mtu) {
            info!(
                interface,
                mtu_bytes = mtu,
                "using the size of packets that this network carried before"
            );
            self.set(uplink, mtu, now + self.retry_every);
        }
    }
}

/// Returns the MTUs that are tried instead of `mtu`.
pub(super) fn smaller_mtus(mtu: u16) -> impl Iterator<Item = u16> {
    MTUS.into_iter().filter(move |smaller| *smaller < mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(600);
    const START: Instant = Instant::ZERO;

    fn uplink(own: u8) -> Uplink {
        Uplink {
            interface: "wan0".to_owned(),
            ipv4: Some([192, 0, 2, own].into()),
            ipv6: Vec::new(),
            others: Vec::new(),
            mtu: 1500,
            cost: 0,
            monthly_cap: None,
        }
    }

    /// Returns the MTU with which the uplink is used.
    fn mtu(narrow: &mut NarrowUplinks, now: Instant) -> u16 {
        narrow.limit(now, vec![uplink(1)])[0].mtu
    }

    #[test]
    fn smaller_mtus_are_tried_until_one_works() {
        let mut narrow = NarrowUplinks::new(EVERY, Sizes::default());
        assert_eq!(mtu(&mut narrow, START), 1500);
        let mut last = 1500;
        for smaller in MTUS {
            narrow.narrow(START, &uplink(1), last);
            last = mtu(&mut narrow, START);
            assert_eq!(last, smaller);
        }
        narrow.narrow(START, &uplink(1), last);
        assert_eq!(mtu(&mut narrow, START), 1500, "the size is not the reason");
    }

    #[test]
    fn a_larger_mtu_is_tried_again_once_in_a_while() {
        let mut narrow = NarrowUplinks::new(EVERY, Sizes::default());
        narrow.narrow(START, &uplink(1), 1500);
        let mut trial = START;
        for _ in 0..3 {
            trial += EVERY;
            assert_eq!(mtu(&mut narrow, trial - Duration::from_millis(1)), 1480);
            assert!(!narrow.is_trial(trial - Duration::from_millis(1), "wan0"));
            assert_eq!(mtu(&mut narrow, trial), 1500);
            assert!(narrow.is_trial(trial, "wan0"));
            // It does not arrive.
            trial += TRIAL;
            assert_eq!(mtu(&mut narrow, trial), 1480);
        }
        narrow.narrow(trial + EVERY, &uplink(1), 1500);
        assert_eq!(
            mtu(&mut narrow, trial + EVERY),
            1480,
            "the last one that worked"
        );
    }

    #[test]
    fn a_larger_mtu_that_works_is_kept() {
        let mut narrow = NarrowUplinks::new(EVERY, Sizes::default());
        narrow.narrow(START, &uplink(1), 1500);
        let small = narrow.limit(START, vec![uplink(1)]).remove(0);
        narrow.confirm(&small);
        assert_eq!(mtu(&mut narrow, START), 1480);
        narrow.confirm(&uplink(1));
        assert_eq!(mtu(&mut narrow, START), 1500);
    }

    #[test]
    fn a_path_that_carries_less_than_the_interface_is_followed() {
        let mut narrow = NarrowUplinks::new(EVERY, Sizes::default());
        let smaller = Uplink {
            mtu: 1400,
            ..uplink(1)
        };
        for carried in [1480, 1400] {
            narrow.shrink(START, &uplink(1), carried);
            assert_eq!(narrow.limit(START, vec![smaller.clone()])[0].mtu, 1400);
            assert_eq!(mtu(&mut narrow, START), 1500, "it was the interface");
        }
        narrow.shrink(START, &uplink(1), 1400);
        assert_eq!(mtu(&mut narrow, START), 1400);
        narrow.shrink(START, &uplink(1), 1358);
        assert_eq!(mtu(&mut narrow, START), 1352);
        narrow.shrink(START, &uplink(1), 1228);
        assert_eq!(mtu(&mut narrow, START), 1352, "there is no smaller MTU");
        assert!(narrow.is_limited(&Uplink {
            mtu: 1352,
            ..uplink(1)
        }));
    }

    #[test]
    fn another_network_is_tried_with_the_whole_mtu() {
        let mut narrow = NarrowUplinks::new(EVERY, Sizes::default());
        narrow.narrow(START, &uplink(1), 1500);
        assert_eq!(narrow.limit(START, vec![uplink(2)])[0].mtu, 1500);
        assert_eq!(mtu(&mut narrow, START), 1500);
    }

    #[test]
    fn what_a_network_carried_is_known_after_a_restart() {
        let mut narrow = NarrowUplinks::new(EVERY, Sizes::default());
        narrow.narrow(START, &uplink(1), 1500);
        assert_eq!(*narrow.sizes(), Sizes::default(), "it may be too large");
        let fits = |mtu| Uplink { mtu, ..uplink(1) };
        narrow.confirm(&fits(1480));
        narrow.fit(START, &fits(1400));
        let restarted = |before: &NarrowUplinks| NarrowUplinks::new(EVERY, before.sizes().clone());
        let mut narrow = restarted(&narrow);
        assert_eq!(mtu(&mut narrow, START), 1400);
        assert_eq!(narrow.limit(START, vec![uplink(2)])[0].mtu, 1500);
        assert_eq!(mtu(&mut narrow, START), 1400, "the first network again");

        // The network has become narrower, and wider.
        narrow.fit(START, &fits(1352));
        let mut narrow = restarted(&narrow);
        assert_eq!(mtu(&mut narrow, START), 1352);
        assert_eq!(mtu(&mut narrow, START + EVERY), 1500);
        narrow.confirm(&uplink(1));
        assert_eq!(mtu(&mut restarted(&narrow), START), 1500);

        // No size works.
        narrow.fit(START, &fits(1352));
        let mut narrow = restarted(&narrow);
        assert_eq!(mtu(&mut narrow, START), 1352);
        for mtu in [1352, 1280] {
            narrow.narrow(START, &uplink(1), mtu);
        }
        assert_eq!(mtu(&mut restarted(&narrow), START), 1500);
    }
}

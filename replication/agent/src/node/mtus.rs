//! The MTUs of paths that ICMP errors have told (RFC 1191, RFC 8201), or that large requests without
//! replies have shown.

use hawser_units::PathId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time after which an MTU is forgotten and larger copies are sent again (RFC 1191, section 6.3;
/// RFC 8201, section 4).
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The least MTUs that are believed: errors can be forged. Over IPv4, a UDP payload of 1200 bytes fits
/// (RFC 8899, section 5.1.2); over IPv6, every link has at least 1280 bytes (RFC 8200, section 5).
const LEAST_V4: u16 = 1200 + 28;
const LEAST_V6: u16 = 1280;

/// Returns the least MTU that a path can have.
pub(super) fn least(is_ipv6: bool) -> u16 {
    if is_ipv6 { LEAST_V6 } else { LEAST_V4 }
}

/// The MTUs by path, with the time at which each is forgotten.
#[derive(Debug, Default)]
pub(super) struct LearnedMtus(BTreeMap<PathId, (u16, Instant)>);

impl LearnedMtus {
    /// Learns the MTU of a path on which packets of up to `current` bytes are sent. `told` is 0 if the
    /// router did not tell it. Returns the new MTU if it is smaller.
    pub(super) fn learn(
        &mut self,
        path: PathId,
        is_ipv6: bool,
        told: u32,
        current: u16,
        now: Instant,
    ) -> Option<u16> {
        let least = least(is_ipv6);
        let mtu_bytes = u16::try_from(told).unwrap_or(u16::MAX).max(least);
        if mtu_bytes >= current {
            return None;
        }
        self.0.insert(path, (mtu_bytes, now + FORGOTTEN_AFTER));
        Some(mtu_bytes)
    }

    /// Returns the learned MTU of a path.
    pub(super) fn get(&self, path: PathId, now: Instant) -> Option<u16> {
        let (mtu_bytes, until) = *self.0.get(&path)?;
        (now < until).then_some(mtu_bytes)
    }

    /// Forgets the MTU of a path, because it leads elsewhere now.
    pub(super) fn forget(&mut self, path: PathId) {
        self.0.remove(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: u8 = 1;

    fn path() -> PathId {
        PathId::try_from(PATH).unwrap()
    }

    #[test]
    fn a_smaller_mtu_is_learned_and_forgotten_after_ten_minutes() {
        let (mut mtus, now) = (LearnedMtus::default(), Instant::now());
        assert_eq!(mtus.learn(path(), false, 1400, 1500, now), Some(1400));
        let almost = now + Duration::from_secs(599);
        assert_eq!(mtus.get(path(), almost), Some(1400));
        assert_eq!(mtus.get(path(), now + FORGOTTEN_AFTER), None);
        assert_eq!(mtus.learn(path(), false, 1300, 1400, almost), Some(1300));
        assert_eq!(mtus.get(path(), now + FORGOTTEN_AFTER), Some(1300));
        mtus.forget(path());
        assert_eq!(mtus.get(path(), almost), None);
    }

    #[test]
    fn no_error_makes_a_path_useless_or_raises_its_mtu() {
        let (mut mtus, now) = (LearnedMtus::default(), Instant::now());
        for (is_ipv6, told, current, learned) in [
            (false, 0, 1500, Some(1228)),
            (false, 68, 1500, Some(1228)),
            (true, 68, 1500, Some(1280)),
            (false, 1500, 1500, None),
            (false, 9000, 1500, None),
            (false, u32::MAX, 1500, None),
            (false, 68, 1200, None),
        ] {
            assert_eq!(mtus.learn(path(), is_ipv6, told, current, now), learned);
        }
    }
}

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handshakes of one source at once, and those of them before it has to show that its address is its own: whoever makes
/// up addresses takes no more than these from a client that has one of them.
const MOST: usize = 32;
const UNVALIDATED: usize = 8;

/// Bits of an IPv6 address that are the network's.
const NETWORK: u32 = 64;

/// How many handshakes each source has begun: an address of IPv4, or a network of IPv6.
#[derive(Debug, Default)]
pub(super) struct Sources(Mutex<HashMap<IpAddr, usize>>);

/// A handshake, for as long as it lasts.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Sources>,
    source: IpAddr,
}

impl Sources {
    /// Whether the source has to show that its address is its own.
    pub(super) fn is_crowded(&self, address: IpAddr) -> bool {
        self.lock().get(&source(address)).is_some_and(|count| *count >= UNVALIDATED)
    }

    /// A handshake of the source; none when it has enough.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Share> {
        let source = source(address);
        let mut counts = self.lock();
        let count = counts.entry(source).or_default();
        if *count == MOST {
            return None;
        }
        *count += 1;
        Some(Share { of: Arc::clone(self), source })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.of.lock();
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}

fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> NETWORK << NETWORK).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_a_share_and_no_more() {
        let sources = Arc::new(Sources::default());
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (one, same, other) in [
            ("203.0.113.1", "203.0.113.1", "203.0.113.2"),
            ("2001:db8::1", "2001:db8::2:1", "2001:db8:0:1::1"),
        ] {
            let mut shares: Vec<_> = (0..UNVALIDATED).map(|_| sources.take(ip(one)).unwrap()).collect();
            assert!(sources.is_crowded(ip(same)) && !sources.is_crowded(ip(other)));
            shares.extend((UNVALIDATED..MOST).map(|_| sources.take(ip(same)).unwrap()));
            assert!(sources.take(ip(one)).is_none() && sources.take(ip(other)).is_some());
            shares.pop();
            assert!(sources.take(ip(same)).is_some());
        }
        assert!(sources.lock().is_empty());
    }
}

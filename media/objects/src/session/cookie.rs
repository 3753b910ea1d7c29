use crate::keys::{Seed, is_equal};
use hawser_packets::session::COOKIE;
use hawser_units::Instant;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Makes and checks cookies, which prove that a viewer receives at its address. A cookie is a time
/// and an authenticator; it needs no state.
#[derive(Debug)]
pub(super) struct Cookies {
    seed: Seed,
    lifetime: Duration,
}

impl Cookies {
    pub(super) fn new(seed: Seed, lifetime: Duration) -> Self {
        Cookies { seed, lifetime }
    }

    pub(super) fn make(&self, now: Instant, from: SocketAddr, random: &[u8; 16]) -> [u8; COOKIE] {
        let time = now.as_nanos().to_be_bytes();
        let mut cookie = [0; COOKIE];
        cookie[..8].copy_from_slice(&time);
        cookie[8..].copy_from_slice(&self.mac(&time, from, random));
        cookie
    }

    /// Returns whether a cookie was made for this address and request, and not too long ago.
    pub(super) fn accept(
        &self,
        now: Instant,
        from: SocketAddr,
        random: &[u8; 16],
        cookie: &[u8; COOKIE],
    ) -> bool {
        let (Some(time), Some(mac)) = (cookie.first_chunk::<8>(), cookie.last_chunk()) else {
            return false;
        };
        let made = Instant::from_nanos(u64::from_be_bytes(*time));
        let is_fresh = made <= now && now.saturating_since(made) <= self.lifetime;
        is_fresh && is_equal(&self.mac(time, from, random), mac)
    }

    fn mac(&self, time: &[u8; 8], from: SocketAddr, random: &[u8; 16]) -> [u8; 16] {
        let address = match from.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let port = from.port().to_be_bytes();
        self.seed.mac(&[time, &address, &port, random])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_of_one_address_one_request_and_a_short_time() {
        let second = Duration::from_secs(1);
        let cookies = Cookies::new(Seed::new([1; 32]), second * 10);
        let now = Instant::ZERO + second * 100;
        let from = "192.0.2.1:1".parse().unwrap();
        let cookie = cookies.make(now, from, &[2; 16]);
        let accepts = |at, from: &str, random| {
            cookies.accept(at, from.parse().unwrap(), &[random; 16], &cookie)
        };
        assert!(accepts(now, "192.0.2.1:1", 2) && accepts(now + second * 10, "192.0.2.1:1", 2));
        assert!(!accepts(now + second * 11, "192.0.2.1:1", 2), "old");
        assert!(!accepts(now - second, "192.0.2.1:1", 2), "of the future");
        assert!(!accepts(now, "192.0.2.2:1", 2), "another address");
        assert!(!accepts(now, "192.0.2.1:2", 2), "another port");
        assert!(!accepts(now, "192.0.2.1:1", 3), "another request");
        let other = Cookies::new(Seed::new([3; 32]), second * 10);
        assert!(
            !other.accept(now, from, &[2; 16], &cookie),
            "another sender"
        );
        assert!(!cookies.accept(now, from, &[2; 16], &[0; COOKIE]));
    }
}

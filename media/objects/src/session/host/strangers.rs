use crate::keys::Seed;
use hawser_units::{BoundedQueue, ByteSize, Instant, NotHeldCounts};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The answers to unverified addresses. Nothing is kept of them
/// but what they have used of their share.
///
/// An attacker who has captured a request can repeat it from any address, and authenticating it costs more than sending
/// it. Each source therefore has a share of the requests that are processed, together with the sources in the
/// same place of a table. Requests with a valid cookie have other shares, which cannot be used up from forged
/// addresses.
#[derive(Debug)]
pub(super) struct Strangers {
    /// The key of the hash that chooses the places, so that a source cannot choose that of another.
    seed: [u8; 16],
    /// The time at which each share is full again: those of requests without a cookie, and then those with one.
    whole_at: Vec<Instant>,
    answers: BoundedQueue<(SocketAddr, Vec<u8>)>,
}

/// The number of shares of requests with a cookie, and without.
const SHARES: usize = 64;

/// The time for each request of a share, and that for which requests may be saved up: 128 in a second, and 256
/// at once. A viewer needs two to open a session.
const PER_REQUEST: Duration = Duration::from_nanos(7_812_500);
const SAVED: Duration = Duration::from_secs(2);

/// The bytes of answers that wait: 6000.
const ANSWERS: ByteSize = ByteSize(1 << 20);

impl Strangers {
    pub(super) fn new(seed: &Seed) -> Self {
        Strangers {
            seed: seed.mac(&[b"shares"]),
            whole_at: vec![Instant::ZERO; 2 * SHARES],
            answers: BoundedQueue::new(ANSWERS),
        }
    }

    /// Returns whether a request from this address is to be processed.
    pub(super) fn has_share(&self, now: Instant, from: SocketAddr, has_cookie: bool) -> bool {
        self.whole_at[self.place(from, has_cookie)].saturating_since(now) + PER_REQUEST <= SAVED
    }

    /// Uses a share for an authentic request.
    pub(super) fn take(&mut self, now: Instant, from: SocketAddr, has_cookie: bool) {
        let place = self.place(from, has_cookie);
        self.whole_at[place] = self.whole_at[place].max(now) + PER_REQUEST;
    }

    /// Adds an answer. The queue counts an answer that it has no room for.
    pub(super) fn answer(&mut self, to: SocketAddr, answer: Vec<u8>) {
        let _ = self.answers.push((to, answer));
    }

    pub(super) fn poll_answer(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.answers.pop()
    }

    pub(super) const fn refused(&self) -> NotHeldCounts {
        self.answers.refused()
    }

    fn place(&self, from: SocketAddr, has_cookie: bool) -> usize {
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        match from.ip().to_canonical() {
            IpAddr::V4(address) => address.hash(&mut hasher),
            // A host may have all addresses of a /64.
            IpAddr::V6(address) => address.octets()[..8].hash(&mut hasher),
        }
        let place = (hasher.finish() % SHARES as u64) as usize;
        place + if has_cookie { SHARES } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(5_000_000_000);

    fn taken(strangers: &mut Strangers, now: Instant, from: SocketAddr) -> usize {
        let mut count = 0;
        while strangers.has_share(now, from, false) {
            strangers.take(now, from, false);
            count += 1;
        }
        count
    }

    #[test]
    fn a_source_uses_its_own_share_whatever_its_ports() {
        let mut strangers = Strangers::new(&Seed::new([1; 32]));
        let own = |port| SocketAddr::from(([192, 0, 2, 1], port));
        assert_eq!(taken(&mut strangers, START, own(1)), 256);
        assert_eq!(taken(&mut strangers, START, own(2)), 0);
        let others = (2..100).map(|host| SocketAddr::from(([192, 0, 2, host], 1)));
        let served = others.filter(|other| strangers.has_share(START, *other, false));
        assert!(served.count() > 80);
        let second = START + Duration::from_secs(1);
        assert_eq!(taken(&mut strangers, second, own(1)), 128);
    }

    #[test]
    fn all_sources_together_are_answered_at_a_bounded_rate() {
        let mut strangers = Strangers::new(&Seed::new([1; 32]));
        let mut answered = 0;
        for host in 0..20_000u32 {
            let from = SocketAddr::new(IpAddr::V4(host.into()), 1);
            answered += taken(&mut strangers, START, from);
        }
        assert_eq!(answered, 256 * SHARES);
    }

    #[test]
    fn answers_that_nobody_takes_are_bounded() {
        let mut strangers = Strangers::new(&Seed::new([1; 32]));
        for port in 0..60_000 {
            strangers.answer(([192, 0, 2, 1], port).into(), vec![0; 44]);
        }
        assert!(strangers.answers.held() <= ANSWERS);
        assert!(strangers.answers.len() > 6000);
        let held = strangers.answers.len() as u64;
        assert_eq!(strangers.refused().full, 60_000 - held);
    }
}

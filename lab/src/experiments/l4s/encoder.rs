//! The encoder: 30 frames per second whose sizes follow the target.

use hawser_objects::IPV4_UDP;
use hawser_packets::media::{DEFAULT_DATAGRAM, Header};
use hawser_units::{Bitrate, Instant};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// The bytes of the IPv4 and UDP headers in front of a datagram.
pub(super) const IP_UDP: u64 = IPV4_UDP.0;

/// The time from frame to frame.
pub(super) const INTERVAL: Duration = Duration::from_nanos(33_333_333);

/// The part by which the size of a frame differs from the target at most.
const VARIATION: f64 = 0.15;

/// The bytes of a full packet with all headers.
pub(super) const PACKET: u64 = DEFAULT_DATAGRAM as u64 + IP_UDP;

/// The bytes of all headers of a packet of Hawser's media.
pub(super) const HEADERS: u64 = Header::OVERHEAD as u64 + IP_UDP;

/// Makes frames whose packets, with all headers, have the target's rate on average.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    random: ChaCha8Rng,
    next: Instant,
    headers: u64,
}

impl Encoder {
    /// Creates an encoder whose first frame is captured at `first`. `headers` are the bytes of all
    /// headers of a packet.
    pub(super) fn new(seed: u64, first: Instant, headers: u64) -> Self {
        Encoder {
            random: ChaCha8Rng::seed_from_u64(seed),
            next: first,
            headers,
        }
    }

    /// Returns the time of the next frame's capture.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Returns the number of payload bytes of each layer of the next frame, if it is due.
    pub(super) fn encode(
        &mut self,
        now: Instant,
        target: Bitrate,
        layers: &[f64],
    ) -> Option<Vec<usize>> {
        if now < self.next {
            return None;
        }
        self.next += INTERVAL;
        let factor = 1.0 + self.random.random_range(-VARIATION..=VARIATION);
        let bytes = target.bps() as f64 / 8.0 * INTERVAL.as_secs_f64() * factor;
        let sizes = layers.iter().map(|share| bytes * share);
        Some(sizes.map(|bytes| self.payload(bytes as u64)).collect())
    }

    /// Returns the payload of packets that have so many bytes with all headers.
    fn payload(&self, bytes: u64) -> usize {
        let packets = bytes.div_ceil(PACKET).max(1);
        let payload = bytes.saturating_sub(packets * self.headers).max(1);
        usize::try_from(payload).expect("a frame is small")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_targets_rate_with_all_headers() {
        let mut encoder = Encoder::new(1, Instant::ZERO, HEADERS);
        let mut bytes = 0;
        let mut sizes = Vec::new();
        for _ in 0..3000 {
            let target = Bitrate::from_mbps(90.0);
            let layers = encoder
                .encode(encoder.next(), target, &[0.25, 0.75])
                .unwrap();
            let frame: u64 = layers.iter().map(|size| with_headers(*size as u64)).sum();
            sizes.push(frame);
            bytes += frame;
        }
        let mbps = bytes as f64 * 8e-6 / (3000.0 * INTERVAL.as_secs_f64());
        assert!((mbps - 90.0).abs() < 0.5, "{mbps}");
        let (low, high) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*low < 330_000 && *high > 420_000, "{low} {high}");
    }

    fn with_headers(payload: u64) -> u64 {
        payload + payload.div_ceil(PACKET - HEADERS) * HEADERS
    }
}

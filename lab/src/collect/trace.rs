//! The traces of the packets that arrived over the uplinks.

use super::MAX_SECONDS;
use super::datagram::{HEADERS, LENGTH};
use hawser_netem::Opportunities;
use std::fmt::Write as _;
use std::time::Duration;

/// The interval of a drive's rows.
const STEP: Duration = Duration::from_millis(100);

/// In a step in which less than this share of the packets arrived, the uplink was full, and its queue dropped the
/// rest.
const FULL: f64 = 0.95;

/// The packets that arrived over one uplink.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Packets that arrived in each millisecond.
    per_ms: Vec<u16>,
    /// The number of the latest packet at the end of each step.
    numbers: Vec<u64>,
    /// The smallest round trip so far.
    pub(super) round_trip: Option<Duration>,
}

impl Arrivals {
    /// Notes a packet that arrived `at` after the first one of all uplinks. Returns whether there is room for it: a
    /// collection is limited.
    pub(super) fn note(&mut self, at: Duration, number: u64) -> bool {
        if at >= Duration::from_secs(MAX_SECONDS.into()) + STEP {
            return false;
        }
        let ms = at.as_millis() as usize;
        if self.per_ms.len() <= ms {
            self.per_ms.resize(ms + 1, 0);
        }
        self.per_ms[ms] = self.per_ms[ms].saturating_add(1);
        let step = (at.as_nanos() / STEP.as_nanos()) as usize;
        let latest = self.numbers.last().copied().unwrap_or(0);
        if self.numbers.len() <= step {
            self.numbers.resize(step + 1, latest);
        }
        self.numbers[step] = self.numbers[step].max(number);
        true
    }

    /// Returns the number of packets.
    pub(super) fn packets(&self) -> u64 {
        self.per_ms.iter().map(|packets| u64::from(*packets)).sum()
    }

    /// Returns a trace of Mahimahi: the millisecond of each 1500 bytes that arrived, a line each.
    pub(super) fn mahimahi(&self) -> String {
        let (mut text, mut bytes) = (String::new(), 0);
        for (ms, packets) in self.per_ms.iter().enumerate() {
            bytes += u64::from(*packets) * (LENGTH + HEADERS) as u64;
            while bytes >= Opportunities::SIZE.0 {
                bytes -= Opportunities::SIZE.0;
                writeln!(text, "{ms}").expect("a string");
            }
        }
        text
    }

    /// Returns the packets that arrived in a step, and those that were sent meanwhile, as far as is known from their
    /// numbers.
    fn step(&self, step: usize) -> (u64, u64) {
        let in_step = STEP.as_millis() as usize;
        let arrived = self.per_ms.iter().skip(step * in_step).take(in_step);
        let latest = |step: usize| {
            let number = self.numbers.get(step).or(self.numbers.last());
            number.copied().unwrap_or(0)
        };
        let before = step.checked_sub(1).map_or(0, latest);
        let arrived = arrived.map(|packets| u64::from(*packets)).sum();
        (arrived, latest(step).saturating_sub(before))
    }
}

/// Returns a drive: for each uplink and 100 ms the rate at which packets arrived, half of the smallest round trip, and
/// the share of lost packets while the uplink was not full.
pub(super) fn drive(uplinks: &[Arrivals]) -> String {
    let steps = uplinks.iter().map(|uplink| uplink.numbers.len()).max();
    let mut text = "t_ms,path,rate_mbps,owd_ms,loss\n".to_owned();
    for step in 0..steps.unwrap_or(0) {
        for (path, uplink) in uplinks.iter().enumerate() {
            let (arrived, sent) = uplink.step(step);
            let bits = arrived as f64 * 8.0 * (LENGTH + HEADERS) as f64;
            let share = arrived.min(sent) as f64 / sent.max(1) as f64;
            let loss = if share < FULL { 0.0 } else { 1.0 - share };
            let delay = uplink.round_trip.unwrap_or_default() / 2;
            writeln!(
                text,
                "{},{path},{:.2},{:.1},{loss:.3}",
                step as u128 * STEP.as_millis(),
                bits / STEP.as_secs_f64() / 1e6,
                delay.as_secs_f64() * 1e3,
            )
            .expect("a string");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_netem::Drive;

    #[test]
    fn a_drive_has_rate_delay_and_the_losses_of_an_uplink_that_is_not_full() {
        let mut uplink = Arrivals {
            round_trip: Some(Duration::from_millis(30)),
            ..Arrivals::default()
        };
        // 100 packets in the first step, of which two are lost; then every second of 200.
        for number in (1..=100).filter(|number| number % 50 != 0) {
            assert!(uplink.note(Duration::from_millis(number - 1), number));
        }
        for number in (102..=300).step_by(2) {
            assert!(uplink.note(Duration::from_millis(100 + (number - 102) / 2), number));
        }
        let text = drive(&[uplink]);
        let rows: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(rows, ["0,0,10.98,15.0,0.010", "100,0,11.20,15.0,0.000"]);
        assert_eq!(Drive::parse(&text).unwrap().paths().count(), 1);
    }

    #[test]
    fn a_trace_of_mahimahi_has_a_line_for_each_1500_bytes() {
        let mut uplink = Arrivals::default();
        for number in 1..=15 {
            uplink.note(Duration::from_millis(number), number);
        }
        // 15 packets of 1400 bytes.
        assert_eq!(uplink.packets(), 15);
        let lines = uplink.mahimahi();
        assert_eq!(lines.lines().count(), 14);
        assert_eq!(lines.lines().next(), Some("2"));
        assert!(Opportunities::parse(&lines).is_ok());
    }

    #[test]
    fn a_collection_is_limited() {
        let mut uplink = Arrivals::default();
        assert!(!uplink.note(Duration::from_secs(2 * u64::from(MAX_SECONDS)), 1));
        assert_eq!(uplink.packets(), 0);
    }
}

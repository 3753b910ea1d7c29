//! The traces of the packets that arrived over the uplinks.

use super::datagram::{HEADERS, LENGTH};
use hawser_netem::{DRIVE_HEADER, Opportunities};
use std::fmt::Write as _;
use std::time::Duration;

/// The interval of a drive's rows.
pub(super) const STEP: Duration = Duration::from_millis(100);

/// The longest drive. A longer collection becomes several, so that the receiving end keeps no more than one.
pub(super) const DRIVE: Duration = Duration::from_secs(60);

/// The bytes of a packet with its headers.
const PACKET: usize = LENGTH + HEADERS;

/// In a step in which less than this share of the packets arrived, the uplink was full, and its queue dropped the
/// rest.
const FULL: f64 = 0.95;

/// The packets that arrived over one uplink during a drive.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Packets that arrived in each millisecond.
    per_ms: Vec<u16>,
    /// The number of the latest packet at the end of each step.
    numbers: Vec<u64>,
    /// The number of the latest packet before the drive.
    before: u64,
}

impl Arrivals {
    /// Notes a packet that arrived `at` after the begin of the drive.
    pub(super) fn note(&mut self, at: Duration, number: u64) {
        let ms = at.as_millis() as usize;
        if self.per_ms.len() <= ms {
            self.per_ms.resize(ms + 1, 0);
        }
        self.per_ms[ms] = self.per_ms[ms].saturating_add(1);
        let step = (at.as_nanos() / STEP.as_nanos()) as usize;
        let latest = self.latest();
        if self.numbers.len() <= step {
            self.numbers.resize(step + 1, latest);
        }
        self.numbers[step] = latest.max(number);
    }

    /// Begins the next drive.
    pub(super) fn clear(&mut self) {
        self.before = self.latest();
        self.per_ms.clear();
        self.numbers.clear();
    }

    /// Returns the number of packets in the first `length`.
    pub(super) fn packets(&self, length: Duration) -> u64 {
        self.in_ms(0, length.as_millis() as usize).sum()
    }

    /// Returns a trace of Mahimahi: the millisecond of each 1500 bytes that arrived, a line each. As the last line is the
    /// period of such a trace, there is one more at its end. `None` if nothing arrived.
    pub(super) fn mahimahi(&self, length: Duration) -> Option<String> {
        let (mut text, mut bytes) = (String::new(), 0);
        for (ms, packets) in self.in_ms(0, length.as_millis() as usize).enumerate() {
            bytes += packets * PACKET as u64;
            // Packets arrive while this is written, so each line is made once.
            let lines = bytes / Opportunities::SIZE.0;
            text += &format!("{ms}\n").repeat(lines as usize);
            bytes %= Opportunities::SIZE.0;
        }
        if text.is_empty() {
            return None;
        }
        writeln!(text, "{}", length.as_millis()).expect("a string");
        Some(text)
    }

    fn in_ms(&self, first: usize, count: usize) -> impl Iterator<Item = u64> {
        let packets = self.per_ms.iter().skip(first).take(count);
        packets.map(|packets| u64::from(*packets))
    }

    fn latest(&self) -> u64 {
        self.numbers.last().copied().unwrap_or(self.before)
    }

    /// Returns the packets that arrived in a step, and those that were sent meanwhile, as far as is known from their
    /// numbers.
    fn step(&self, step: usize) -> (u64, u64) {
        let in_step = STEP.as_millis() as usize;
        let arrived = self.in_ms(step * in_step, in_step).sum();
        let until = |step: usize| self.numbers.get(step).copied().unwrap_or(self.latest());
        let before = step.checked_sub(1).map_or(self.before, until);
        (arrived, until(step).saturating_sub(before))
    }
}

/// Returns a drive of `length`: for each uplink and step the rate at which packets arrived, half of the round trip, and the
/// share of lost packets while the uplink was not full. The uplinks are their paths, round trips and arrivals.
pub(super) fn drive(uplinks: &[(u8, Duration, &Arrivals)], length: Duration) -> String {
    let mut text = format!("{DRIVE_HEADER}\n");
    for step in 0..(length.as_nanos() / STEP.as_nanos()) as usize {
        for (path, round_trip, arrivals) in uplinks {
            let (arrived, sent) = arrivals.step(step);
            let bits = arrived as f64 * 8.0 * PACKET as f64;
            let share = arrived.min(sent) as f64 / sent.max(1) as f64;
            let loss = if share < FULL { 0.0 } else { 1.0 - share };
            writeln!(
                text,
                "{},{path},{:.2},{:.1},{loss:.3}",
                step as u128 * STEP.as_millis(),
                bits / STEP.as_secs_f64() / 1e6,
                round_trip.as_secs_f64() * 1e3 / 2.0,
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

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_drive_has_rate_delay_and_losses_of_a_free_uplink() {
        let mut uplink = Arrivals::default();
        // 100 packets in the first step, of which two are lost; then every second of 200.
        for number in (1..=100).filter(|number| number % 50 != 0) {
            uplink.note(MS * (number - 1), number.into());
        }
        for number in (102..=300).step_by(2) {
            uplink.note(MS * (100 + (number - 102) / 2), number.into());
        }
        let rows = |uplink: &Arrivals, length: Duration| {
            let text = drive(&[(0, 30 * MS, uplink)], length);
            assert_eq!(Drive::parse(&text).unwrap().paths().count(), 1);
            let rows = text.lines().skip(1).map(str::to_owned);
            rows.collect::<Vec<_>>()
        };
        let both = ["0,0,10.98,15.0,0.010", "100,0,11.20,15.0,0.000"];
        assert_eq!(rows(&uplink, 200 * MS), both);
        // A step that is not complete has no row, and one without a packet has.
        assert_eq!(rows(&uplink, 199 * MS), both[..1]);
        assert_eq!(rows(&uplink, 300 * MS)[2], "200,0,0.00,15.0,0.000");

        // The next drive: 99 of the 100 packets that follow.
        uplink.clear();
        for number in 302..=400 {
            uplink.note(50 * MS, number);
        }
        assert_eq!(rows(&uplink, 100 * MS), ["0,0,11.09,15.0,0.010"]);
    }

    #[test]
    fn a_mahimahi_trace_has_a_line_for_each_1500_bytes() {
        let mut uplink = Arrivals::default();
        assert_eq!(uplink.mahimahi(100 * MS), None);
        for number in 1..=15 {
            uplink.note(MS * number, number.into());
        }
        // 15 packets of 1400 bytes, and nothing after 15 ms.
        assert_eq!(uplink.packets(100 * MS), 15);
        let trace = uplink.mahimahi(100 * MS).unwrap();
        let lines: Vec<_> = trace.lines().collect();
        assert_eq!(lines.len(), 14 + 1);
        assert_eq!((lines[0], lines[13], lines[14]), ("2", "15", "100"));
        assert!(Opportunities::parse(&trace).is_ok());
        // Packets that arrive after the end are not in it.
        assert_eq!(uplink.packets(10 * MS), 9);
        assert!(uplink.mahimahi(10 * MS).unwrap().ends_with("\n9\n10\n"));
    }
}

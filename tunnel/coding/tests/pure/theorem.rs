//! Theorem 4.1 of the paper: n + k coded packets suffice with a probability of at least 1 -
//! 1/(255^k · 254).

use hawser_coding::field::{inverse, multiply};
use hawser_coding::{Config, Decoder, encode, fill_coefficients};

/// The number of packets in a range, r in the paper (section 4.4.2).
const PACKETS: usize = 10;

/// The equations of a decoder that may lack one: for each pivot the coefficients of the equation
/// that starts there.
#[derive(Clone, Default)]
struct Received {
    equations: [Option<[u8; PACKETS]>; PACKETS],
}

impl Received {
    fn after(seeds: impl Iterator<Item = u64>) -> Self {
        let mut received = Received::default();
        seeds.for_each(|seed| received.receive(seed));
        received
    }

    fn receive(&mut self, seed: u64) {
        let mut row = [0; PACKETS];
        fill_coefficients(seed, &mut row);
        for pivot in 0..PACKETS {
            if row[pivot] == 0 {
                continue;
            }
            let Some(equation) = &self.equations[pivot] else {
                self.equations[pivot] = Some(row);
                return;
            };
            let factor = multiply(row[pivot], inverse(equation[pivot]));
            row.iter_mut()
                .zip(equation)
                .for_each(|(sum, other)| *sum ^= multiply(factor, *other));
        }
    }

    fn suffices(&self) -> bool {
        self.equations.iter().all(Option::is_some)
    }
}

/// For k > 1, failures are too rare to be observed directly. An additional coded packet does no
/// harm, so the probability that n + k fail is that of n + k - 1 failing times that of one more not
/// helping. Each factor is therefore estimated from the failures of the previous step.
#[test]
fn as_many_coded_packets_suffice_as_the_theorem_says() {
    const TRIALS: usize = 100_000;
    const STANDARD_DEVIATIONS: f64 = 4.0;

    let mut seeds = 0..;
    let mut start = vec![Received::default()];
    let mut packets = PACKETS;
    let mut failures = 1.0;
    let mut relative_variance = 0.0;
    for more in 0..=3 {
        let trials = start.iter().cycle().take(TRIALS).map(|received| {
            let mut received = received.clone();
            seeds
                .by_ref()
                .take(packets)
                .for_each(|seed| received.receive(seed));
            received
        });
        let failed: Vec<Received> = trials.filter(|received| !received.suffices()).collect();
        assert!(
            failed.len() > 100,
            "too few failures to say anything: {}",
            failed.len()
        );
        failures *= failed.len() as f64 / TRIALS as f64;
        relative_variance += 1.0 / failed.len() as f64;

        let bound = 1.0 / (255f64.powi(more) * 254.0);
        let doubt = STANDARD_DEVIATIONS * relative_variance.sqrt();
        assert!(
            failures < bound * (1.0 + doubt),
            "k = {more}: {failures:e} failed, at most {bound:e} should"
        );
        // The bound is tight. Far fewer failures would mean that the test is broken.
        assert!(
            failures > bound * (1.0 - doubt),
            "k = {more}: only {failures:e} of {bound:e} failed"
        );
        start = failed;
        packets = 1;
    }
}

#[test]
fn the_decoder_succeeds_exactly_when_the_equations_suffice() {
    let packets: Vec<[u8; 1]> = (0..PACKETS as u8).map(|n| [n]).collect();
    let range: Vec<&[u8]> = packets.iter().map(|packet| &packet[..]).collect();
    let mut failures = 0;
    for trial in 0..3000 {
        let seeds = trial * PACKETS as u64..(trial + 1) * PACKETS as u64;
        let mut decoder = Decoder::new(Config::default());
        for seed in seeds.clone() {
            let mut symbol = Vec::new();
            encode(&range, seed, &mut symbol);
            decoder.handle_coded(0, PACKETS, seed, &symbol).unwrap();
        }
        let suffices = Received::after(seeds).suffices();
        assert_eq!(
            decoder.counts().determined == PACKETS as u64,
            suffices,
            "trial {trial}"
        );
        failures += usize::from(!suffices);
    }
    assert!(failures > 0, "no trial failed");
}

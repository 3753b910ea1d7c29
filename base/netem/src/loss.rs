use crate::config::Loss;
use crate::random::{Draws, Stream};
use std::time::Duration;

/// The state of random loss.
#[derive(Debug, Clone)]
pub(crate) struct LossModel {
    loss: Loss,
    draws: Draws,
    bad: bool,
    /// With [`Loss::Bursts`], the share of the steps that held for the last packet.
    share: f64,
}

impl LossModel {
    pub(crate) fn new(loss: Loss, seed: u64) -> Self {
        LossModel {
            loss,
            draws: Draws::new(seed, Stream::Loss, 0),
            bad: false,
            share: 0.0,
        }
    }

    /// Draws the numbers that decide about the next packet.
    pub(crate) fn draw(&mut self) -> Drawn {
        let has_state = matches!(self.loss, Loss::GilbertElliott { .. } | Loss::Bursts { .. });
        Drawn {
            change: if has_state { self.draws.draw() } else { 1.0 },
            loss: self.draws.draw(),
        }
    }

    /// Returns whether the next packet, which is at the place of the loss at `elapsed`, is lost.
    pub(crate) fn loses(&mut self, elapsed: Duration, drawn: Drawn) -> bool {
        let probability = match &self.loss {
            Loss::Independent(probability) => probability.get(),
            Loss::Steps(steps) => steps.at(elapsed).get(),
            &Loss::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_good,
                loss_bad,
            } => {
                self.change(good_to_bad.get(), bad_to_good.get(), drawn);
                if self.bad { loss_bad } else { loss_good }.get()
            }
            Loss::Bursts {
                steps,
                mean_packets,
            } => {
                let share = steps.at(elapsed).get();
                let (to_bad, to_good) = match share == self.share {
                    true => bursts(share, f64::from(mean_packets.get())),
                    false => share_change(self.share, share),
                };
                self.share = share;
                self.change(to_bad, to_good, drawn);
                f64::from(u8::from(self.bad))
            }
        };
        drawn.loss < probability
    }

    fn change(&mut self, good_to_bad: f64, bad_to_good: f64, drawn: Drawn) {
        let leave = if self.bad { bad_to_good } else { good_to_bad };
        self.bad ^= drawn.change < leave;
    }
}

/// The numbers drawn for a packet, in [0, 1).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawn {
    /// Decides whether the state changes before the packet.
    change: f64,
    /// Decides whether the packet is lost.
    loss: f64,
}

/// Returns the probabilities of changing to the bad and to the good state with which this share of
/// packets meets the bad state.
fn bursts(share: f64, mean_packets: f64) -> (f64, f64) {
    let to_bad = share / (1.0 - share) / mean_packets;
    match to_bad <= 1.0 {
        true => (to_bad, 1.0 / mean_packets),
        false => (1.0, (1.0 - share) / share),
    }
}

/// Returns the probabilities of changing to the bad and to the good state with which the next packet
/// meets the bad state with probability `to`, if the last one met it with probability `from`. So each
/// packet of a short step is lost with the probability of the step.
fn share_change(from: f64, to: f64) -> (f64, f64) {
    match to > from {
        true => ((to - from) / (1.0 - from), 0.0),
        false => (0.0, (from - to) / from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Probability;
    use crate::steps::Steps;

    fn lost(loss: Loss, packets: usize) -> Vec<bool> {
        let mut model = LossModel::new(loss, 1);
        (0..packets)
            .map(|_| loses(&mut model, Duration::ZERO))
            .collect()
    }

    fn loses(model: &mut LossModel, elapsed: Duration) -> bool {
        let drawn = model.draw();
        model.loses(elapsed, drawn)
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    fn probability(value: f64) -> Probability {
        value.try_into().unwrap()
    }

    #[test]
    fn independent_loss_takes_its_share() {
        let share = share(&lost(Loss::Independent(probability(0.2)), 100_000));
        assert!((share - 0.2).abs() < 0.005, "{share}");
    }

    #[test]
    fn gilbert_elliott_has_its_share_and_its_burst_length() {
        let lost = lost(
            Loss::GilbertElliott {
                good_to_bad: probability(0.01),
                bad_to_good: probability(0.25),
                loss_good: Probability::ZERO,
                loss_bad: probability(1.0),
            },
            400_000,
        );
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let burst_length = share(&lost) * lost.len() as f64 / bursts as f64;

        assert!(
            (share(&lost) - 0.01 / 0.26).abs() < 0.002,
            "{}",
            share(&lost)
        );
        assert!((burst_length - 4.0).abs() < 0.2, "{burst_length}");
    }

    #[test]
    fn bursts_have_the_share_of_their_schedule_and_their_length() {
        let second = Duration::from_secs(1);
        for (wanted, length) in [(0.02, 5.0), (0.3, 5.0), (0.95, 19.0), (1.0, 400_000.0)] {
            let steps = vec![
                (Duration::ZERO, probability(wanted)),
                (second, Probability::ZERO),
            ];
            let loss = Loss::Bursts {
                steps: Steps::new(steps).unwrap(),
                mean_packets: 5.try_into().unwrap(),
            };
            let lost = lost(loss.clone(), 400_000);
            let bursts = 1 + lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
            let measured = share(&lost) * lost.len() as f64 / bursts as f64;
            assert!(
                (share(&lost) - wanted).abs() < 0.005,
                "{wanted}: {}",
                share(&lost)
            );
            assert!(
                (measured / length - 1.0).abs() < 0.05,
                "{wanted}: {measured}"
            );

            let mut model = LossModel::new(loss, 1);
            (0..1000).for_each(|_| _ = loses(&mut model, Duration::ZERO));
            assert!((0..1000).all(|_| !loses(&mut model, second)), "{wanted}");
        }
    }

    #[test]
    fn bursts_have_their_share_in_steps_of_few_packets() {
        const PACKETS: u32 = 10;
        let ms = Duration::from_millis;
        let shares = [0.0, 0.2, 0.05, 0.0, 0.5];
        let schedule = shares.iter().cycle().take(50_000).enumerate();
        let steps = schedule.map(|(step, share)| (ms(step as u64), probability(*share)));
        let steps: Vec<_> = steps.collect();
        let mut lost = [0; 5];
        let mut model = LossModel::new(
            Loss::Bursts {
                steps: Steps::new(steps.clone()).unwrap(),
                mean_packets: 5.try_into().unwrap(),
            },
            1,
        );
        for (step, (begin, _)) in steps.iter().enumerate() {
            let packets = (0..PACKETS).filter(|_| loses(&mut model, *begin));
            lost[step % shares.len()] += packets.count();
        }
        for (lost, wanted) in lost.iter().zip(shares) {
            let share = *lost as f64 / f64::from(10_000 * PACKETS);
            assert!((share - wanted).abs() < 0.01, "{wanted}: {share}");
        }
    }

    #[test]
    fn loss_follows_its_schedule() {
        let second = Duration::from_secs(1);
        let steps = Steps::new(vec![
            (Duration::ZERO, Probability::ZERO),
            (second, probability(1.0)),
        ])
        .unwrap();
        let mut model = LossModel::new(Loss::Steps(steps), 1);

        assert!(!loses(&mut model, Duration::ZERO));
        assert!(loses(&mut model, second));
    }
}

use crate::config::Loss;
use crate::figure::Probability;
use crate::random::{Draws, Stream};
use std::time::Duration;

/// The state of random loss.
#[derive(Debug, Clone)]
pub(crate) struct LossModel {
    loss: Loss,
    draws: Draws,
    bad: bool,
}

impl LossModel {
    pub(crate) fn new(loss: Loss, seed: u64) -> Self {
        LossModel {
            loss,
            draws: Draws::new(seed, Stream::Loss, 0),
            bad: false,
        }
    }

    /// Returns whether the next packet, which arrives at `elapsed`, is lost.
    pub(crate) fn loses(&mut self, elapsed: Duration) -> bool {
        let probability = match &self.loss {
            Loss::Independent(probability) => *probability,
            Loss::Steps(steps) => steps.at(elapsed),
            &Loss::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_good,
                loss_bad,
            } => {
                self.step(good_to_bad, bad_to_good);
                if self.bad { loss_bad } else { loss_good }
            }
        };
        self.draws.hit(probability)
    }

    fn step(&mut self, good_to_bad: Probability, bad_to_good: Probability) {
        let leave = if self.bad { bad_to_good } else { good_to_bad };
        self.bad ^= self.draws.hit(leave);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::Steps;

    fn lost(loss: Loss, packets: usize) -> Vec<bool> {
        let mut model = LossModel::new(loss, 1);
        (0..packets).map(|_| model.loses(Duration::ZERO)).collect()
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
    fn loss_follows_its_schedule() {
        let second = Duration::from_secs(1);
        let steps = Steps::new(vec![
            (Duration::ZERO, Probability::ZERO),
            (second, probability(1.0)),
        ])
        .unwrap();
        let mut model = LossModel::new(Loss::Steps(steps), 1);

        assert!(!model.loses(Duration::ZERO));
        assert!(model.loses(second));
    }
}

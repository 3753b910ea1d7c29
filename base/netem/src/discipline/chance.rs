use crate::config::Decisions;
use crate::random::{Draws, Stream};

/// Turns probabilities into decisions.
#[derive(Debug, Clone)]
pub(crate) enum Chance {
    /// The sum of the probabilities since the last hit.
    Recur(f64),
    Random(Box<Draws>),
}

impl Chance {
    /// Creates the decisions of queue `number` of a discipline.
    pub(crate) fn new(decisions: Decisions, seed: u64, number: usize) -> Self {
        match decisions {
            Decisions::Recur => Chance::Recur(0.0),
            Decisions::Random => {
                Chance::Random(Box::new(Draws::new(seed, Stream::Discipline, number)))
            }
        }
    }

    /// Returns `true` with the probability `likelihood`, which is from 0 to 1.
    pub(crate) fn hits(&mut self, likelihood: f64) -> bool {
        match self {
            Chance::Recur(count) => {
                *count += likelihood;
                let hit = *count > 1.0;
                if hit {
                    *count -= 1.0;
                }
                hit
            }
            Chance::Random(draws) => draws.draw() < likelihood,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_hit_the_share_of_the_likelihood() {
        for (decisions, tolerance) in [(Decisions::Recur, 1), (Decisions::Random, 150)] {
            let mut chance = Chance::new(decisions, 1, 0);
            let hits = (0..10_000).filter(|_| chance.hits(0.3)).count();
            assert!(hits.abs_diff(3000) <= tolerance, "{decisions:?}: {hits}");
        }
    }
}

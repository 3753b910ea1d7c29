use crate::figure::Probability;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The impairments that use random numbers, each from its own stream of the seed.
#[derive(Clone, Copy)]
pub(crate) enum Stream {
    Loss = 1,
    Duplicate = 2,
    Reorder = 3,
    Corrupt = 4,
    /// The first of the numbers of a queue discipline; the others follow.
    Discipline = 8,
    /// The first of the extra delays; the others follow.
    ExtraDelay = 16,
}

/// The random numbers of one impairment.
#[derive(Debug, Clone)]
pub(crate) struct Draws(ChaCha8Rng);

impl Draws {
    pub(crate) fn new(seed: u64, stream: Stream, number: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream as u64 + number as u64);
        Draws(rng)
    }

    /// Returns the next number, uniform in [0, 1).
    pub(crate) fn draw(&mut self) -> f64 {
        self.0.random()
    }

    /// Returns the next 64 bits.
    pub(crate) fn draw_bits(&mut self) -> u64 {
        self.0.random()
    }

    /// Returns the number at a position of the stream, uniform in [0, 1).
    pub(crate) fn draw_at(&mut self, position: u64) -> f64 {
        const WORDS_PER_DRAW: u128 = 2;
        self.0.set_word_pos(u128::from(position) * WORDS_PER_DRAW);
        self.draw()
    }

    /// Returns `true` with probability `share`.
    pub(crate) fn hit(&mut self, share: Probability) -> bool {
        self.draw() < share.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_of_the_stream_always_holds_the_same_number() {
        let mut draws = Draws::new(7, Stream::ExtraDelay, 0);
        let in_turn: Vec<f64> = (0..40).map(|_| draws.draw()).collect();
        let backwards: Vec<f64> = (0..40)
            .rev()
            .map(|position| draws.draw_at(position))
            .collect();

        assert!(in_turn.iter().eq(backwards.iter().rev()));
        assert_ne!(in_turn[0], Draws::new(7, Stream::ExtraDelay, 1).draw());
        assert_ne!(in_turn[0], Draws::new(8, Stream::ExtraDelay, 0).draw());
    }
}

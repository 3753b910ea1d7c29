//! Intervals of confidence by paired bootstrap over drives (Efron 1979).

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const RESAMPLES: usize = 10_000;

/// The share of the resamples below, and above, the interval.
const TAIL: f64 = 0.025;

/// A seed of its own: intervals do not depend on the seed of the links.
const SEED: u64 = 1;

/// Returns the 95 % interval of the share of `others` that `ours` spares, 1 - sum(ours) /
/// sum(others). Each pair of figures belongs to one drive. A resample that has nothing to spare counts
/// as the worst possible share. Returns `None` if these are too many for a lower limit, and for fewer
/// than two drives.
pub(super) fn reduction(ours: &[f64], others: &[f64]) -> Option<(f64, f64)> {
    let drives = ours.len();
    if drives < 2 {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut reductions = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let (mut our_sum, mut other_sum) = (0.0, 0.0);
        for _ in 0..drives {
            let drive = random.random_range(0..drives);
            our_sum += ours[drive];
            other_sum += others[drive];
        }
        reductions.push(match other_sum > 0.0 {
            true => 1.0 - our_sum / other_sum,
            false => f64::NEG_INFINITY,
        });
    }
    reductions.sort_by(f64::total_cmp);
    let tail = (TAIL * RESAMPLES as f64) as usize;
    let (low, high) = (reductions[tail], reductions[RESAMPLES - 1 - tail]);
    low.is_finite().then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reductions_have_no_width_one_drive_no_interval() {
        let others = [0.1, 0.3, 0.02, 0.4];
        let ours = others.map(|other| other / 4.0);
        let (low, high) = reduction(&ours, &others).unwrap();
        assert!((low - 0.75).abs() < 1e-9 && (high - 0.75).abs() < 1e-9);
        assert_eq!(reduction(&[0.1], &[0.2]), None);
        assert_eq!(
            reduction(&[0.1, 0.0], &[0.2, 0.0]),
            None,
            "a quarter of the resamples has nothing to spare"
        );
    }

    #[test]
    fn a_few_resamples_with_nothing_to_spare_leave_an_interval() {
        // Without any of the five drives: one resample in 180.
        let others: Vec<f64> = (0..60).map(|drive| f64::from(drive % 12 == 0)).collect();
        let ours: Vec<f64> = others.iter().map(|other| other / 4.0).collect();
        assert_eq!(reduction(&ours, &others), Some((0.75, 0.75)));
    }

    #[test]
    fn the_interval_covers_nineteen_of_twenty_samples() {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        let mut covered = 0;
        for _ in 0..100 {
            let others: Vec<f64> = (0..60).map(|_| random.random::<f64>()).collect();
            // Ours is half of the other's on average, independently of it.
            let ours: Vec<f64> = (0..60).map(|_| random.random::<f64>() / 2.0).collect();
            let (low, high) = reduction(&ours, &others).unwrap();
            covered += usize::from((low..=high).contains(&0.5));
        }
        assert!((88..=99).contains(&covered), "{covered} of 100");
    }
}

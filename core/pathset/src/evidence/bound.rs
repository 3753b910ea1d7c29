//! How often something happens at least and at most, having been seen a number of times.
//!
//! Counts of rare events are Poisson distributed. These are its exact (Garwood) limits in the approximation of Wilson and
//! Hilferty, which is good to a few percent even where no event was seen: there the upper limit is the rule of three, at
//! this confidence a rule of 4.6.

/// The quantile of the normal distribution that one in a hundred exceeds.
const ONE_IN_100: f64 = 2.326;

/// What the expected number of events is below, after `seen` were seen; wrong one time in a hundred.
pub(super) fn at_most(seen: u64) -> f64 {
    let k = seen as f64 + 1.0;
    k * (1.0 - 1.0 / (9.0 * k) + ONE_IN_100 / (3.0 * k.sqrt())).powi(3)
}

/// What the expected number of events is above, after `seen` were seen; wrong one time in a hundred.
pub(super) fn at_least(seen: u64) -> f64 {
    if seen == 0 {
        return 0.0;
    }
    let k = seen as f64;
    k * (1.0 - 1.0 / (9.0 * k) - ONE_IN_100 / (3.0 * k.sqrt()))
        .max(0.0)
        .powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_those_of_the_tables() {
        for (seen, least, most) in [
            (0, 0.0, 4.605),
            (1, 0.010, 6.638),
            (3, 0.436, 10.045),
            (10, 4.130, 20.145),
        ] {
            assert!(
                (at_least(seen) - least).abs() < 0.03,
                "{seen}: {}",
                at_least(seen)
            );
            assert!(
                (at_most(seen) - most).abs() < 0.1,
                "{seen}: {}",
                at_most(seen)
            );
        }
    }
}

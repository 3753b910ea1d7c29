//! Confidence limits of the expected number of events, given the number observed.
//!
//! Counts of rare events are Poisson distributed. These are the exact (Garwood) limits in the
//! approximation of Wilson and Hilferty, which is accurate to a few percent even if no event was
//! observed: there, the upper limit is the rule of three, at this confidence a rule of 4.6.

/// The 99 % quantile of the normal distribution.
const Z_99: f64 = 2.326;

/// Returns the upper limit of the expected number of events after `observed` were observed, with a
/// confidence of 99 %.
pub(super) fn upper_limit(observed: u64) -> f64 {
    let k = observed as f64 + 1.0;
    k * (1.0 - 1.0 / (9.0 * k) + Z_99 / (3.0 * k.sqrt())).powi(3)
}

/// Returns the lower limit of the expected number of events after `observed` were observed, with a
/// confidence of 99 %.
pub(super) fn lower_limit(observed: u64) -> f64 {
    if observed == 0 {
        return 0.0;
    }
    let k = observed as f64;
    k * (1.0 - 1.0 / (9.0 * k) - Z_99 / (3.0 * k.sqrt()))
        .max(0.0)
        .powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_those_of_the_tables() {
        for (observed, lower, upper) in [
            (0, 0.0, 4.605),
            (1, 0.010, 6.638),
            (3, 0.436, 10.045),
            (10, 4.130, 20.145),
        ] {
            assert!(
                (lower_limit(observed) - lower).abs() < 0.03,
                "{observed}: {}",
                lower_limit(observed)
            );
            assert!(
                (upper_limit(observed) - upper).abs() < 0.1,
                "{observed}: {}",
                upper_limit(observed)
            );
        }
    }
}

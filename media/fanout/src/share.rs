/// A share of numbered things, such as the groups of a track, in 1/256.
///
/// A number is in the share if its lowest eight bits in reverse order are below it. That spreads the share
/// evenly: where it is half or less, no two of it follow each other. A larger share has all of a smaller one,
/// so a share that changes a little leaves most as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u16);

impl Share {
    /// All of them.
    pub const ALL: Share = Share(256);

    /// Returns the share of this fraction, rounded down to 1/256: none below that, all from one on.
    pub fn of(fraction: f64) -> Self {
        Share((fraction * 256.0).clamp(0.0, 256.0) as u16)
    }

    /// Returns whether a number is in the share.
    pub const fn contains(self, number: u32) -> bool {
        ((number as u8).reverse_bits() as u16) < self.0
    }

    /// Returns the share in 1/256.
    pub const fn get(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_of_the_frames_is_every_other_one() {
        let sent: Vec<u32> = (0..8).filter(|n| Share::of(0.5).contains(*n)).collect();
        assert_eq!(sent, [0, 2, 4, 6]);
        assert_eq!([Share::of(7.0), Share::of(-1.0)], [Share::ALL, Share(0)]);
        assert!((0..256).all(|number| Share::ALL.contains(number)));
        assert!(!(0..256).any(|number| Share(0).contains(number)));
    }

    proptest! {
        #[test]
        fn a_share_is_exact_and_evenly_spread(share in 1..=256u16, from in 0..u32::MAX - 1024) {
            let contained = |numbers: std::ops::Range<u32>| {
                numbers.filter(|number| Share(share).contains(*number)).count()
            };
            prop_assert_eq!(contained(from..from + 256), usize::from(share));
            // The share has its part of 2^n following ones, rounded up or down.
            for length in [2, 4, 8, 16, 32, 64, 128] {
                let part = f64::from(length) * f64::from(share) / 256.0;
                let start = from / length * length;
                let count = contained(start..start + length) as f64;
                prop_assert!((count - part).abs() < 1.0, "{} of {}", count, length);
            }
            let larger = Share((share + 1).min(256));
            let numbers = from..from + 256;
            prop_assert!(numbers.into_iter().all(|n| !Share(share).contains(n) || larger.contains(n)));
        }
    }
}

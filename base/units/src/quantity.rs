use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A number of bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Returns the number of bits.
    pub const fn bits(self) -> u64 {
        self.0 * 8
    }
}

impl Add for ByteSize {
    type Output = ByteSize;

    fn add(self, other: ByteSize) -> ByteSize {
        ByteSize(self.0 + other.0)
    }
}

impl AddAssign for ByteSize {
    fn add_assign(&mut self, other: ByteSize) {
        self.0 += other.0;
    }
}

impl Sub for ByteSize {
    type Output = ByteSize;

    fn sub(self, other: ByteSize) -> ByteSize {
        ByteSize(self.0 - other.0)
    }
}

impl Sum for ByteSize {
    fn sum<I: Iterator<Item = ByteSize>>(sizes: I) -> ByteSize {
        ByteSize(sizes.map(|size| size.0).sum())
    }
}

/// A rate in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bitrate(u64);

impl Bitrate {
    /// Creates a rate from bits per second.
    pub const fn from_bps(bps: u64) -> Self {
        Bitrate(bps)
    }

    /// Creates a rate from millions of bits per second, rounded to whole bits per second.
    pub fn from_mbps(mbps: f64) -> Self {
        Bitrate((mbps * 1e6).round() as u64)
    }

    /// Returns the mean rate of `size` sent over `duration`, or zero if `duration` is zero.
    pub fn average(size: ByteSize, duration: Duration) -> Self {
        if duration.is_zero() {
            return Bitrate(0);
        }
        Bitrate((size.bits() as f64 / duration.as_secs_f64()).round() as u64)
    }

    /// Returns the rate in bits per second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// Returns the rate in millions of bits per second.
    pub fn mbps(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns the time that `size` occupies a link of this rate, rounded up to a nanosecond, or
    /// [`Duration::MAX`] if the rate is zero.
    pub fn time_to_send(self, size: ByteSize) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (u128::from(size.bits()) * 1_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the size that a link of this rate sends in `duration`, rounded down to whole bytes.
    pub fn bytes_in(self, duration: Duration) -> ByteSize {
        let bytes = u128::from(self.0) * duration.as_nanos() / 8_000_000_000;
        ByteSize(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} Mb/s", self.mbps())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_takes_its_bits_over_the_rate() {
        let rate = Bitrate::from_mbps(8.0);
        assert_eq!(rate.time_to_send(ByteSize(1000)), Duration::from_millis(1));
        assert_eq!(rate.bytes_in(Duration::from_millis(1)), ByteSize(1000));
        assert_eq!(rate.bytes_in(Duration::MAX), ByteSize(u64::MAX));
        assert_eq!(
            Bitrate::from_bps(0).time_to_send(ByteSize(1)),
            Duration::MAX
        );
        assert_eq!(
            Bitrate::average(ByteSize(1000), Duration::from_millis(1)),
            rate
        );
    }
}

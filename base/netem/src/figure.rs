//! Numbers in traces and statistics.

use hawser_units::Bitrate;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use std::time::Duration;

/// A quantity as written in traces and statistics: one number, in the unit that its name has.
pub(crate) trait Figure: Copy {
    /// Returns the quantity that `figure` denotes.
    fn from_figure(figure: f64) -> Result<Self, InvalidConfig>;

    /// Returns the number that denotes the quantity.
    fn figure(self) -> f64;
}

impl Figure for Bitrate {
    fn from_figure(mbps: f64) -> Result<Self, InvalidConfig> {
        if mbps >= 0.0 && mbps.is_finite() {
            Ok(Bitrate::from_mbps(mbps))
        } else {
            Err(InvalidConfig::Figure(mbps, "rate"))
        }
    }

    fn figure(self) -> f64 {
        self.mbps()
    }
}

impl Figure for Duration {
    fn from_figure(ms: f64) -> Result<Self, InvalidConfig> {
        Duration::try_from_secs_f64(ms / 1e3).map_err(|_| InvalidConfig::Figure(ms, "duration"))
    }

    fn figure(self) -> f64 {
        self.as_secs_f64() * 1e3
    }
}

impl Figure for Probability {
    fn from_figure(share: f64) -> Result<Self, InvalidConfig> {
        share.try_into()
    }

    fn figure(self) -> f64 {
        self.get()
    }
}

/// A number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

impl Probability {
    /// Probability 0.
    pub const ZERO: Probability = Probability(0.0);

    /// Returns the number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// An invalid configuration value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidConfig {
    /// A number that is not a probability.
    #[error("{0} is not a probability: must be from 0 to 1")]
    Probability(f64),
    /// A range whose end is below its start.
    #[error("[{0:?}, {1:?}] is not a range: the second must not be below the first")]
    Span(Duration, Duration),
    /// A duration or rate that is negative or out of range.
    #[error("{0} is not a {1}: must be zero or more")]
    Figure(f64, &'static str),
}

impl TryFrom<f64> for Probability {
    type Error = InvalidConfig;

    fn try_from(value: f64) -> Result<Self, InvalidConfig> {
        if (0.0..=1.0).contains(&value) {
            Ok(Probability(value))
        } else {
            Err(InvalidConfig::Probability(value))
        }
    }
}

impl From<Probability> for f64 {
    fn from(probability: Probability) -> f64 {
        probability.0
    }
}

/// A range of durations: of delays, or a period of a schedule (its end excluded).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    from: Duration,
    to: Duration,
}

impl Span {
    /// Creates the span between two durations.
    ///
    /// Returns an error if `to` is below `from`.
    pub fn new(from: Duration, to: Duration) -> Result<Self, InvalidConfig> {
        if from <= to {
            Ok(Span { from, to })
        } else {
            Err(InvalidConfig::Span(from, to))
        }
    }

    /// Returns the lower end.
    pub const fn from(self) -> Duration {
        self.from
    }

    /// Returns the upper end.
    pub const fn to(self) -> Duration {
        self.to
    }

    /// Returns whether `elapsed` lies in the period.
    pub fn contains(self, elapsed: Duration) -> bool {
        (self.from..self.to).contains(&elapsed)
    }
}

/// Serialises a rate as megabits per second and a duration as milliseconds, as the names of the
/// keys say.
pub(crate) fn serialize<T: Figure, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(value.figure())
}

/// The inverse of [`serialize`].
pub(crate) fn deserialize<'de, T: Figure, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    T::from_figure(f64::deserialize(deserializer)?).map_err(D::Error::custom)
}

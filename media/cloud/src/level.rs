use std::fmt;
use std::str::FromStr;

/// The level of detail of a stream (Qian, section IV-B): a maximum number of points per frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Narrow field of view.
    Nfov,
    /// High definition.
    Hd,
    /// Full high definition.
    Fhd,
}

/// The error for a name that is not a level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown level \"{0}\": must be nfov, hd or fhd")]
pub struct UnknownLevel(pub String);

impl Level {
    /// All levels, smallest first.
    pub const ALL: [Level; 3] = [Level::Nfov, Level::Hd, Level::Fhd];

    /// Returns the maximum number of points per frame. `docs/design/pull.md` has the bandwidth that
    /// they need.
    pub const fn points(self) -> usize {
        match self {
            Level::Nfov => 35_000,
            Level::Hd => 94_000,
            Level::Fhd => 184_000,
        }
    }

    /// Returns the name used on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Nfov => "nfov",
            Level::Hd => "hd",
            Level::Fhd => "fhd",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(name: &str) -> Result<Self, UnknownLevel> {
        Level::ALL
            .into_iter()
            .find(|level| level.name() == name)
            .ok_or_else(|| UnknownLevel(name.to_owned()))
    }
}

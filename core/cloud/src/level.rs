use std::fmt;
use std::str::FromStr;

/// How much of a capture is sent (Qian, section IV-B): a budget of points per frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Narrow field of view.
    Nfov,
    /// High definition.
    Hd,
    /// Full high definition.
    Fhd,
}

/// A name that is no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no level is called \"{0}\": there are nfov, hd and fhd")]
pub struct UnknownLevel(pub String);

impl Level {
    /// Every level, smallest first.
    pub const ALL: [Level; 3] = [Level::Nfov, Level::Hd, Level::Fhd];

    /// The most points that a frame has. What they cost on a network is in `docs/design/pull.md`.
    pub const fn points(self) -> usize {
        match self {
            Level::Nfov => 35_000,
            Level::Hd => 94_000,
            Level::Fhd => 184_000,
        }
    }

    /// The name on the command line and in results.
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

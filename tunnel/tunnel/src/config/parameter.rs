//! How the numbers of `[coding]` are checked and set.

use hawser_units::ByteSize;
use std::fmt::Debug;
use std::ops::RangeInclusive;

/// A number out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {allowed}")]
pub struct InvalidParameter {
    /// The key.
    pub key: &'static str,
    /// The valid range.
    pub allowed: String,
}

/// Sets fields of `$config` to the values of `$table` that are given and within `$allowed`,
/// converted by `$convert`.
macro_rules! set {
    ($table:ident, $config:ident, $allowed:expr, $convert:expr, $($key:ident => $field:ident),+ $(,)?) => {
        $(if let Some(value) = $crate::config::parameter::within(stringify!($key), $table.$key, $allowed)? {
            $config.$field = $convert(value);
        })+
    };
}
pub(super) use set;

/// Returns the value of a key, if it is given.
///
/// # Errors
/// If it is out of range.
pub(super) fn within<T: PartialOrd + Debug>(
    key: &'static str,
    given: Option<T>,
    allowed: RangeInclusive<T>,
) -> Result<Option<T>, InvalidParameter> {
    if given.as_ref().is_none_or(|value| allowed.contains(value)) {
        return Ok(given);
    }
    let allowed = format!("{:?} to {:?}", allowed.start(), allowed.end());
    Err(InvalidParameter { key, allowed })
}

/// Converts a number of kilobytes.
pub(super) fn kilobytes(kb: u64) -> ByteSize {
    ByteSize(kb * 1000)
}

/// The valid times, in milliseconds.
pub(super) const TIME_MS: RangeInclusive<u64> = 1..=10_000;

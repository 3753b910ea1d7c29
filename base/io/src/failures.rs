//! Failures of what is tried again and again, each reported once.

use std::collections::BTreeSet;
use std::io;

/// Whether the last attempt failed.
///
/// ```
/// use hawser_io::failures::{Change, Failures};
///
/// let mut failures = Failures::default();
/// assert_eq!(failures.record(Err::<(), _>("disk full")), Some(Change::Failed("disk full")));
/// assert_eq!(failures.record(Err::<(), _>("disk full")), None);
/// assert_eq!(failures.record(Ok::<_, &str>(())), Some(Change::Recovered));
/// assert_eq!(failures.record(Ok::<_, &str>(())), None);
/// ```
#[derive(Debug, Default)]
pub struct Failures {
    is_failing: bool,
}

/// A change that is worth a log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<E> {
    /// An attempt failed after one that succeeded.
    Failed(E),
    /// An attempt succeeded after one that failed.
    Recovered,
}

impl Failures {
    /// Records the outcome of an attempt. Returns whether it differs from the outcome before, which
    /// was a success at first.
    pub fn record<T, E>(&mut self, outcome: Result<T, E>) -> Option<Change<E>> {
        let was_failing = std::mem::replace(&mut self.is_failing, outcome.is_err());
        match outcome {
            Err(error) if !was_failing => Some(Change::Failed(error)),
            Ok(_) if was_failing => Some(Change::Recovered),
            _ => None,
        }
    }

    /// Returns whether the last attempt failed.
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }
}

/// The kinds of errors of the system that have occurred.
///
/// ```
/// use hawser_io::failures::Kinds;
/// use std::io::ErrorKind;
///
/// let mut kinds = Kinds::default();
/// assert!(kinds.is_new(&ErrorKind::PermissionDenied.into()));
/// assert!(!kinds.is_new(&ErrorKind::PermissionDenied.into()));
/// assert!(kinds.is_new(&ErrorKind::NetworkUnreachable.into()));
/// ```
#[derive(Debug, Default)]
pub struct Kinds {
    numbers: BTreeSet<i32>,
    /// Those of errors without a number.
    kinds: BTreeSet<io::ErrorKind>,
}

impl Kinds {
    /// Records an error. Returns whether none of its kind occurred before.
    pub fn is_new(&mut self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(number) => self.numbers.insert(number),
            None => self.kinds.insert(error.kind()),
        }
    }
}

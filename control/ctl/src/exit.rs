//! Exit codes, which docs/ctl.md documents.

use anyhow::anyhow;
use hawser_client::Error;
use hawser_service::Failure;

/// The command line is wrong.
const MISUSED: u8 = 2;

/// Something that the command names does not exist.
const MISSING: u8 = 3;

/// The state does not allow the change: it exists already, was changed by others, or is in use.
const CONFLICT: u8 = 4;

/// The credentials are missing, wrong or insufficient.
const FORBIDDEN: u8 = 5;

/// No controller can be reached, or it cannot answer now: the same command may succeed later.
const UNAVAILABLE: u8 = 6;

/// Adds the exit code of a failure.
pub(crate) fn with_code(error: anyhow::Error) -> anyhow::Error {
    match error
        .chain()
        .find_map(|cause| cause.downcast_ref())
        .and_then(code)
    {
        Some(code) => Failure::new(code, error).into(),
        None => error,
    }
}

/// Creates the error for a wrong command line.
pub(crate) fn misused(what: &'static str) -> anyhow::Error {
    Failure::new(MISUSED, anyhow!(what)).into()
}

/// Creates the error for a command that the credentials do not allow.
pub(crate) fn forbidden(what: &'static str) -> anyhow::Error {
    Failure::new(FORBIDDEN, anyhow!(what)).into()
}

/// Returns whether the same command may succeed later.
pub(crate) fn is_transient(error: &anyhow::Error) -> bool {
    let found: Option<&Error> = error.chain().find_map(|cause| cause.downcast_ref());
    found.is_some_and(Error::is_transient)
}

fn code(error: &Error) -> Option<u8> {
    if error.is_transient() {
        return Some(UNAVAILABLE);
    }
    match error.status()? {
        404 => Some(MISSING),
        409 | 412 => Some(CONFLICT),
        401 | 403 => Some(FORBIDDEN),
        _ => None,
    }
}

use anyhow::Result;
use hawser_client::Error;
use std::fmt;

/// Explains the refusal to replace `what` because it was changed since it was read.
pub(crate) fn unless_changed<T>(replaced: Result<T, Error>, what: impl fmt::Display) -> Result<T> {
    replaced.map_err(|error| {
        let is_outdated = error.status() == Some(412);
        let error = anyhow::Error::from(error);
        match is_outdated {
            true => error.context(format!(
                "{what} was changed by another request in the meantime and is not overwritten: check it and run the command again"
            )),
            false => error,
        }
    })
}

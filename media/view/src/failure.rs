use std::fmt;

/// The errors of watching, and what was measured.
#[derive(Debug)]
pub struct Failure<S> {
    /// The measurements, if watching began.
    pub summary: Option<S>,
    /// The errors, of which there is at least one.
    pub errors: Vec<anyhow::Error>,
}

impl<S> Failure<S> {
    /// Returns the summary, or all of it with the errors if there are some.
    pub(crate) fn unless_empty(summary: S, errors: Vec<anyhow::Error>) -> Result<S, Box<Self>> {
        match errors.is_empty() {
            true => Ok(summary),
            false => Err(Box::new(Failure {
                summary: Some(summary),
                errors,
            })),
        }
    }
}

impl<S> From<anyhow::Error> for Box<Failure<S>> {
    fn from(error: anyhow::Error) -> Self {
        Box::new(Failure {
            summary: None,
            errors: vec![error],
        })
    }
}

impl<S> fmt::Display for Failure<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.errors.iter().map(|error| format!("{error:#}"));
        f.write_str(&errors.collect::<Vec<_>>().join("; "))
    }
}

impl<S: fmt::Debug> std::error::Error for Failure<S> {}

/// Writes to a file that is still there. If that fails, the file is there no longer.
pub(crate) fn attempt<F>(
    file: &mut Option<F>,
    option: &str,
    errors: &mut Vec<anyhow::Error>,
    write: impl FnOnce(&mut F) -> anyhow::Result<()>,
) {
    let Some(open) = file else { return };
    if let Err(error) = write(open) {
        tracing::error!("nothing more is written for {option}: {error:#}");
        *file = None;
        errors.push(error);
    }
}

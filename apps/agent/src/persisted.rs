use anyhow::{Context, Result};
use hawser_control::node::Assignment;
use hawser_io::file;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tracing::{error, info, warn};

/// The file of the last assignment with the policies in force. Only its owner can read it, because
/// it contains the key of the signals.
///
/// The file is replaced atomically and not synced to the disk. After a power failure it is the old
/// or the new one, or it cannot be read. In that case the node has no assignment until the
/// controller answers.
#[derive(Debug)]
pub(crate) struct PersistedAssignment {
    path: PathBuf,
    is_failing: bool,
}

impl PersistedAssignment {
    /// Returns the file of a state directory.
    pub(crate) fn at(directory: &Path) -> Self {
        PersistedAssignment {
            path: directory.join("assignment.json"),
            is_failing: false,
        }
    }

    /// Reads the assignment that an earlier agent wrote.
    pub(crate) fn read(&self) -> Option<Assignment> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            text => text.map_err(anyhow::Error::from),
        };
        let assignment = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        assignment
            .inspect_err(|error| {
                warn!(
                    "cannot use {}: {error:#}; waiting for the controller's assignment",
                    self.path.display()
                )
            })
            .ok()
    }

    /// Writes the assignment. A failure, such as a full disk, must not stop replication: it is
    /// logged once.
    pub(crate) fn write(&mut self, assignment: &Assignment) {
        match self.replace(assignment) {
            Ok(()) if self.is_failing => info!("the assignment can be saved again"),
            Err(error) if !self.is_failing => {
                error!(
                    "{error:#}; after a restart the agent has no flows until the controller answers"
                );
            }
            _ => return,
        }
        self.is_failing = !self.is_failing;
    }

    fn replace(&self, assignment: &Assignment) -> Result<()> {
        let text =
            serde_json::to_vec_pretty(assignment).context("cannot serialize the assignment")?;
        file::replace(&self.path, &text, 0o600)
            .with_context(|| format!("cannot save the assignment to {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn assignment() -> Assignment {
        let signal_key = Some("00112233445566778899aabbccddeeff".to_owned());
        Assignment {
            revision: 7,
            report_every_ms: 5000,
            signal_key,
            sends: vec![],
            receives: vec![],
        }
    }

    #[test]
    fn what_is_kept_is_private_and_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = PersistedAssignment::at(directory.path());
        assert_eq!(file.read(), None);
        file.write(&assignment());
        assert_eq!(file.read(), Some(assignment()));
        let mode = fs::metadata(directory.path().join("assignment.json"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_read_counts_as_none() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("assignment.json"), "{ \"revision\":").unwrap();
        assert_eq!(PersistedAssignment::at(directory.path()).read(), None);
    }
}

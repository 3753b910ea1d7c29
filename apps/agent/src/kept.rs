use anyhow::{Context, Result};
use hawser_control::node::Assignment;
use hawser_io::file;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tracing::{error, info, warn};

/// The last assignment with the policies in force, in a file that only its owner can read: it has the signals' key.
///
/// The file is replaced in one step and not forced to the disk: after a power cut it is the old or the new one, or cannot
/// be read and counts as none until the controller answers.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    failing: bool,
}

impl Kept {
    /// Where it is kept in `directory`.
    pub(crate) fn at(directory: &Path) -> Self {
        Kept {
            path: directory.join("assignment.json"),
            failing: false,
        }
    }

    /// What an agent before this one has kept.
    pub(crate) fn read(&self) -> Option<Assignment> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            text => text.map_err(anyhow::Error::from),
        };
        let assignment = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        assignment
            .inspect_err(|error| warn!("{} is of no use: {error:#}", self.path.display()))
            .ok()
    }

    /// A full disk must not end replication: it is said once, and the agent goes on.
    pub(crate) fn write(&mut self, assignment: &Assignment) {
        match self.replace(assignment) {
            Ok(()) if self.failing => info!("the assignment is kept again"),
            Err(error) if !self.failing => {
                error!("{error:#}; after a restart the agent waits for the controller");
            }
            _ => return,
        }
        self.failing = !self.failing;
    }

    fn replace(&self, assignment: &Assignment) -> Result<()> {
        let text =
            serde_json::to_vec_pretty(assignment).context("cannot describe the assignment")?;
        file::replace(&self.path, &text, 0o600)
            .with_context(|| format!("cannot keep the assignment in {}", self.path.display()))
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
        let mut kept = Kept::at(directory.path());
        assert_eq!(kept.read(), None);
        kept.write(&assignment());
        assert_eq!(kept.read(), Some(assignment()));
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
        assert_eq!(Kept::at(directory.path()).read(), None);
    }
}

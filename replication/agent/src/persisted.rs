use hawser_io::failures::{Change, Failures};
use hawser_io::json_file::JsonFile;
use hawser_model::node::Assignment;
use std::path::Path;
use tracing::{error, info, warn};

/// The file of the last assignment with the policies in force. Only its owner can read it, because
/// it contains the key of the signals.
///
/// After a power failure it is the previous one, or cannot be read. In that case the node has no
/// assignment until the controller answers.
#[derive(Debug)]
pub(crate) struct PersistedAssignment {
    file: JsonFile,
    failures: Failures,
}

impl PersistedAssignment {
    /// Returns the file of a state directory.
    pub(crate) fn at(directory: &Path) -> Self {
        PersistedAssignment {
            file: JsonFile::at(directory.join("assignment.json"), 0o600),
            failures: Failures::default(),
        }
    }

    /// Reads the assignment that an earlier agent wrote.
    pub(crate) fn read(&self) -> Option<Assignment> {
        self.file.read().unwrap_or_else(|error| {
            warn!(
                "cannot use the saved assignment: {error}; waiting for the controller's assignment"
            );
            None
        })
    }

    /// Writes the assignment. A failure, such as a full disk, must not stop replication: it is
    /// logged once.
    pub(crate) fn write(&mut self, assignment: &Assignment) {
        match self.failures.record(self.file.write(assignment)) {
            Some(Change::Failed(error)) => error!(
                "cannot save the assignment: {error}; after a restart the agent has no flows until the controller answers"
            ),
            Some(Change::Recovered) => info!("the assignment can be saved again"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_model::discovery::Discovery;
    use hawser_model::pair::AssignedKeys;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn assignment() -> Assignment {
        let signal_key = Some("00112233445566778899aabbccddeeff".to_owned());
        Assignment {
            revision: 7,
            incarnation: Some("5e".repeat(16)),
            report_every_ms: 5000,
            reconnect_within_ms: 0,
            signal_key,
            sends: vec![],
            receives: vec![],
            keys: AssignedKeys::default(),
            discovery: Discovery::default(),
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

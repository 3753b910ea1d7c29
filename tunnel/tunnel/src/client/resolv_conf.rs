//! The resolver's file, replaced while the tunnel is up.

use anyhow::{Context, Result, bail};
use hawser_io::file;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The beginning of the first line of a file that a client has written.
const WRITTEN_BY: &str = "# Written by hawser tunnel client for ";

/// All users' programs read the file.
const MODE: u32 = 0o644;

/// `resolv.conf`, and the previous one while it is replaced.
///
/// The previous file, which may be a symbolic link, is kept beside it under a second name until it is
/// restored. There is a complete `resolv.conf` at any time, also if this process is killed.
#[derive(Debug)]
pub(super) struct ResolvConf {
    path: PathBuf,
    previous: PathBuf,
    /// The first line of the file if it is this client's.
    first_line: String,
}

impl ResolvConf {
    /// Returns the file in a folder, `/etc`, for the client with this interface.
    pub(super) fn new(folder: &Path, interface: &str) -> ResolvConf {
        let previous = folder.join(format!("resolv.conf.before-{interface}"));
        ResolvConf {
            path: folder.join("resolv.conf"),
            first_line: format!(
                "{WRITTEN_BY}{interface}, instead of {}\n",
                previous.display()
            ),
            previous,
        }
    }

    /// Puts a file with these lines in place of the current one.
    ///
    /// # Errors
    /// If the folder cannot be written to, the file is a mount point, or another client has replaced
    /// it. The file is then unchanged.
    pub(super) fn replace(&self, lines: &str) -> Result<()> {
        let current = read(&self.path)?;
        if !current.starts_with(&self.first_line) {
            if current.starts_with(WRITTEN_BY) {
                bail!("another tunnel client has replaced {}", self.path.display());
            }
            self.keep_current()?;
        }
        let contents = format!("{}{lines}", self.first_line);
        file::replace_durably(&self.path, contents.as_bytes(), MODE)
            .with_context(|| format!("cannot replace {}", self.path.display()))
    }

    /// Gives the current file its second name. A file that another program has replaced meanwhile
    /// loses it.
    fn keep_current(&self) -> Result<()> {
        remove(&self.previous)?;
        match fs::hard_link(&self.path, &self.previous) {
            // There was no file.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            linked => linked.with_context(|| {
                format!(
                    "cannot keep {} as {}; if it is a mount point, as in a container, its name servers have to be set there, \
                     without `dns`",
                    self.path.display(),
                    self.previous.display()
                )
            }),
        }
    }

    /// Returns whether the current file is this client's.
    pub(super) fn is_replaced(&self) -> Result<bool> {
        Ok(read(&self.path)?.starts_with(&self.first_line))
    }

    /// Restores the previous file if the current one is this client's; returns whether it was. The
    /// file of another program stays.
    pub(super) fn restore(&self) -> Result<bool> {
        if !self.is_replaced()? {
            remove(&self.previous)?;
            return Ok(false);
        }
        match fs::rename(&self.previous, &self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => remove(&self.path)?,
            renamed => renamed.with_context(|| {
                format!(
                    "cannot restore {} from {}",
                    self.path.display(),
                    self.previous.display()
                )
            })?,
        }
        Ok(true)
    }
}

/// Reads a file; it is empty if it does not exist or leads nowhere.
fn read(path: &Path) -> Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<()> {
    // A read-only file system refuses also what would change nothing.
    let absence = || fs::symlink_metadata(path).err().map(|error| error.kind());
    let removed = fs::remove_file(path).or_else(|error: io::Error| match absence() {
        Some(ErrorKind::NotFound) => Ok(()),
        _ => Err(error),
    });
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    const OURS: &str = "nameserver 10.77.0.1\n";

    struct Etc(TempDir);

    impl Etc {
        fn new() -> Etc {
            Etc(tempfile::tempdir().unwrap())
        }

        fn client(&self) -> ResolvConf {
            ResolvConf::new(self.0.path(), "tun0")
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("resolv.conf")
        }

        fn text(&self) -> String {
            fs::read_to_string(self.path()).unwrap()
        }

        /// The names of all files.
        fn files(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.path()).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_file_is_replaced_and_restored_by_the_next_process_too() {
        let etc = Etc::new();
        fs::write(etc.path(), "nameserver 192.0.2.1\n").unwrap();
        etc.client().replace(OURS).unwrap();
        assert!(etc.text().ends_with(OURS));
        assert!(etc.client().is_replaced().unwrap());
        etc.client().replace("nameserver 10.77.0.2\n").unwrap();
        assert!(etc.text().ends_with("nameserver 10.77.0.2\n"));
        assert!(etc.client().restore().unwrap());
        assert_eq!(etc.text(), "nameserver 192.0.2.1\n");
        assert_eq!(etc.files(), ["resolv.conf"]);
        assert!(!etc.client().restore().unwrap());
        assert_eq!(etc.files(), ["resolv.conf"]);
    }

    #[test]
    fn a_process_killed_after_keeping_the_file_changes_nothing() {
        let etc = Etc::new();
        fs::write(etc.path(), "nameserver 192.0.2.1\n").unwrap();
        etc.client().keep_current().unwrap();
        assert!(!etc.client().restore().unwrap());
        assert_eq!(etc.text(), "nameserver 192.0.2.1\n");
        assert_eq!(etc.files(), ["resolv.conf"]);
    }

    #[test]
    fn a_symbolic_link_is_restored_and_its_target_unchanged() {
        let etc = Etc::new();
        fs::write(etc.0.path().join("target"), "nameserver 192.0.2.1\n").unwrap();
        for target in ["target", "nowhere"] {
            symlink(target, etc.path()).unwrap();
            etc.client().replace(OURS).unwrap();
            assert!(etc.text().ends_with(OURS));
            assert!(etc.client().restore().unwrap());
            assert_eq!(fs::read_link(etc.path()).unwrap(), Path::new(target));
            fs::remove_file(etc.path()).unwrap();
        }
        let target = fs::read_to_string(etc.0.path().join("target")).unwrap();
        assert_eq!(target, "nameserver 192.0.2.1\n");
    }

    #[test]
    fn without_a_file_there_is_none_afterwards() {
        let etc = Etc::new();
        etc.client().replace(OURS).unwrap();
        assert!(etc.client().restore().unwrap());
        assert!(etc.files().is_empty());
    }

    #[test]
    fn a_foreign_file_stays_or_becomes_the_previous_one() {
        let etc = Etc::new();
        fs::write(etc.path(), "nameserver 192.0.2.1\n").unwrap();
        etc.client().replace(OURS).unwrap();
        let other = || {
            fs::write(etc.0.path().join("new"), "nameserver 192.0.2.2\n").unwrap();
            fs::rename(etc.0.path().join("new"), etc.path()).unwrap();
        };
        other();
        assert!(!etc.client().is_replaced().unwrap());
        etc.client().replace(OURS).unwrap();
        assert!(etc.client().restore().unwrap());
        assert_eq!(etc.text(), "nameserver 192.0.2.2\n");
        etc.client().replace(OURS).unwrap();
        other();
        assert!(!etc.client().restore().unwrap());
        assert_eq!(etc.text(), "nameserver 192.0.2.2\n");
        assert_eq!(etc.files(), ["resolv.conf"]);
    }

    #[test]
    fn the_file_of_another_client_stays() {
        let etc = Etc::new();
        fs::write(etc.path(), "nameserver 192.0.2.1\n").unwrap();
        etc.client().replace(OURS).unwrap();
        let other = ResolvConf::new(etc.0.path(), "tun1");
        let error = other.replace(OURS).unwrap_err().to_string();
        assert!(error.contains("another tunnel client"), "{error}");
        assert!(!other.restore().unwrap());
        assert!(etc.client().restore().unwrap());
        assert_eq!(etc.text(), "nameserver 192.0.2.1\n");
    }
}

//! Files that are read by other processes while they are replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file atomically, so that a reader never sees a partial one. `mode` is the file's
/// permissions, restricted by the umask. Does not wait for the disk: after a power failure the file
/// may be the previous one, or empty.
///
/// # Errors
/// If the folder does not exist or cannot be written to, or the disk is full. The file is then
/// unchanged.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    write(path, contents, mode, false)
}

/// As [`replace`], for contents that must survive a power failure: the file and its folder are on
/// the disk when this returns, which may take as long as the disk is busy.
///
/// # Errors
/// As [`replace`], and if the disk fails; the file is then the previous or the new one.
pub fn replace_durably(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    write(path, contents, mode, true)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write(path: &Path, contents: &[u8], mode: u32, durably: bool) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    write_draft(draft.as_ref(), contents, mode, durably)
        .and_then(|()| fs::rename(&draft, path))
        .inspect_err(|_| {
            // Nobody needs a part of a file. The error that counts is the first one.
            let _ = fs::remove_file(&draft);
        })
}

fn write_draft(draft: &Path, contents: &[u8], mode: u32, durably: bool) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(draft)?;
    file.write_all(contents)?;
    if durably {
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        for replace in [replace, replace_durably] {
            for contents in ["a longer one", "short"] {
                replace(&path, contents.as_bytes(), 0o600).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), contents);
            }
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(replace_durably(&directory.path().join("missing/kept"), b"", 0o600).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"contents", 0o600).is_err());
        let draft = directory.path().join("limited.new");
        std::os::unix::fs::symlink("/dev/full", &draft).unwrap();
        assert!(replace(&directory.path().join("limited"), b"contents", 0o600).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

//! Files of state: read by other processes while they are replaced, and written both by a service and by root.
//!
//! A file that root writes into a folder of another user belongs to the folder's owner. A service that runs as this user
//! can then read and replace it.

use nix::unistd::{Gid, Uid, fchown, geteuid};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Creates a folder and those that it is in, as far as they are missing. `mode` is the permissions of the new ones,
/// restricted by the umask.
///
/// # Errors
/// If one of them cannot be created, or is not a folder.
pub fn create_folder(path: &Path, mode: u32) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = folder_of(path);
    create_folder(parent, mode)?;
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => give_to_owner_of(parent, &File::open(path)?),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens a file to write to it as it is, and creates it if it does not exist. `mode` is the permissions of the new one,
/// restricted by the umask.
///
/// # Errors
/// If the folder does not exist, or the file can neither be written to nor created.
pub fn open_or_create(path: &Path, mode: u32) -> io::Result<File> {
    match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        opened => return opened,
    }
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(mode).open(path) {
        Ok(file) => {
            give_to_owner_of(folder_of(path), &file)?;
            Ok(file)
        }
        // Another process has created it in between.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().write(true).open(path)
        }
        Err(error) => Err(error),
    }
}

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
    File::open(folder_of(path))?.sync_all()
}

/// Returns the path of a file beside another one, whose name is that of the other one and `suffix`.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Gives an open file or folder to the owner of the folder that it is in. Only root does and can do this.
fn give_to_owner_of(folder: &Path, file: &File) -> io::Result<()> {
    if geteuid().is_root() {
        let owner = fs::metadata(folder)?;
        fchown(
            file,
            Some(Uid::from_raw(owner.uid())),
            Some(Gid::from_raw(owner.gid())),
        )?;
    }
    Ok(())
}

fn write(path: &Path, contents: &[u8], mode: u32, durably: bool) -> io::Result<()> {
    let draft = with_suffix(path, ".new");
    write_draft(&draft, contents, mode, durably)
        .and_then(|()| fs::rename(&draft, path))
        .inspect_err(|_| {
            // Nobody needs a part of a file. The error that counts is the first one.
            let _ = fs::remove_file(&draft);
        })
}

fn write_draft(draft: &Path, contents: &[u8], mode: u32, durably: bool) -> io::Result<()> {
    // The owner of the folder may be another user, so a draft that is there already is not written through: it
    // could be a link to any file.
    match fs::remove_file(draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(draft)?;
    give_to_owner_of(folder_of(draft), &file)?;
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
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_in_place_of_the_draft_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "unchanged").unwrap();
        std::os::unix::fs::symlink(&other, directory.path().join("kept.new")).unwrap();
        replace(&directory.path().join("kept"), b"contents", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "unchanged");
        assert_eq!(
            fs::read_to_string(directory.path().join("kept")).unwrap(),
            "contents"
        );
    }

    /// Runs only as root: others cannot make a folder of another user.
    #[test]
    fn what_root_writes_belongs_to_the_owner_of_the_folder() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        fs::create_dir(&state).unwrap();
        if !geteuid().is_root() {
            assert!(std::os::unix::fs::chown(&state, Some(12345), Some(12346)).is_err());
            return;
        }
        std::os::unix::fs::chown(&state, Some(12345), Some(12346)).unwrap();
        let folder = state.join("agent/edge-1");
        create_folder(&folder, 0o700).unwrap();
        replace(&folder.join("clock"), b"1", 0o600).unwrap();
        for path in [state.join("agent"), folder.clone(), folder.join("clock")] {
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid()), (12345, 12346), "{path:?}");
        }
        create_folder(&folder, 0o700).unwrap();
        let blocked = create_folder(&folder.join("clock/below"), 0o700);
        assert!(blocked.is_err());
    }
}

//! Files of state: read by other processes while they are replaced, and written both by a service and by root.
//!
//! A file that root writes into a folder of another user belongs to the folder's owner. A service that runs as this user
//! can then read and replace it. This user may replace any part of a path at any time, so folders are opened once, and
//! what is in them is named relative to them.

mod folder;
mod named;

use folder::Folder;
use named::Named;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Permission bits of the group and of others.
const OTHERS: u32 = 0o077;

/// The same but for the group's to read.
const OTHERS_THAN_GROUP: u32 = 0o037;

/// The most bytes of a secret.
const MAX_SECRET: u64 = 1 << 20;

/// The most bytes of a text.
const MAX_TEXT: u64 = 16 << 20;

/// A secret cannot be read from a file.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
    /// Not only those may read it who should.
    #[error("{0} is readable by others: run chmod {mode:o} {0}", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// The permissions that it should have.
        mode: u32,
    },
}

/// Creates a folder and those that it is in, as far as they are missing. `mode` is the permissions of the new ones,
/// restricted by the umask.
///
/// # Errors
/// If one of them cannot be created, is not a folder, or is a symbolic link of another user than root and the caller.
pub fn create_folder(path: &Path, mode: u32) -> io::Result<()> {
    Folder::create(path, mode).map(drop)
}

/// Opens a file to read it and to write to it as it is, and creates it if it does not exist. `mode` is the permissions of
/// the new one, restricted by the umask.
///
/// # Errors
/// If the folder does not exist, or the file can neither be opened nor created, or is a symbolic link.
pub fn open_or_create(path: &Path, mode: u32) -> io::Result<File> {
    let (folder, name) = (Folder::open(folder_of(path))?, name_of(path)?);
    match folder.file(name, OFlag::O_RDWR) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        opened => return opened,
    }
    match folder.create_file(name, OFlag::O_RDWR, mode) {
        // Another process has created it in between.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => folder.file(name, OFlag::O_RDWR),
        created => created,
    }
}

/// Creates a file that a person has named, or empties it. A pipe has to have a reader: without one, this would wait for
/// ever.
///
/// # Errors
/// If it cannot be written, or is a pipe without a reader.
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let opened = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::ENXIO as i32 => {
            io::Error::other("it is a pipe that nobody reads: start its reader first")
        }
        _ => error,
    })?;
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

/// Replaces a file atomically, so that a reader never sees a partial one. `mode` is the file's
/// permissions, restricted by the umask. Does not wait for the disk: after a power failure the file
/// may be the previous one, or empty.
///
/// # Errors
/// If the folder does not exist or cannot be written to, the disk is full, or the path is that of a device, a pipe or a
/// folder. The file is then unchanged.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let folder = Folder::open(folder_of(path))?;
    put(&folder, name_of(path)?, contents, mode, false)
}

/// Writes a file that a person has named: replaces it as [`replace`] does, or the one that a link leads to. A device or a
/// pipe is written to.
///
/// # Errors
/// As [`replace`] and [`create`].
pub fn write(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let is_file = path.metadata().map(|found| found.is_file());
    match is_file {
        Ok(true) => replace(&path.canonicalize()?, contents, mode),
        Ok(false) => create(path)?.write_all(contents),
        Err(_) => replace(path, contents, mode),
    }
}

/// As [`replace`], for contents that must survive a power failure: the file and its folder are on
/// the disk when this returns, which may take as long as the disk is busy.
///
/// # Errors
/// As [`replace`], and if the disk fails; the file is then the previous or the new one.
pub fn replace_durably(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let folder = Folder::open(folder_of(path))?;
    put(&folder, name_of(path)?, contents, mode, true)?;
    folder.sync()
}

/// Reads the text of a file that a person has named. What comes out of a pipe is read, too.
///
/// # Errors
/// If it cannot be read, is a folder, a socket or a device, has more than 16 MiB, or is a pipe without a writer
/// for 20 s.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    Named::open(path)?.read_text(MAX_TEXT, &mut text)?;
    Ok(text)
}

/// Reads a secret from a file that only its owner may read. What was read is wiped from memory.
///
/// # Errors
/// As [`read_text`], and if others may read it or it has more than 1 MiB.
pub fn read_secret(path: &Path) -> Result<Zeroizing<String>, SecretError> {
    read_unless(path, OTHERS, 0o600)
}

/// As [`read_secret`], for the key of a certificate, which the file's group may read too: that is how distributions let
/// several services share one, such as Debian with the group `ssl-cert`.
///
/// # Errors
/// If it cannot be read, or others than its owner and group may read it.
pub fn read_tls_key(path: &Path) -> Result<Zeroizing<String>, SecretError> {
    read_unless(path, OTHERS_THAN_GROUP, 0o640)
}

/// Reads a secret from a file that has none of the permissions `refused`. `mode` is what it should have.
fn read_unless(path: &Path, refused: u32, mode: u32) -> Result<Zeroizing<String>, SecretError> {
    let failed = |error| SecretError::Read {
        path: path.to_owned(),
        error,
    };
    let file = Named::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.mode() & refused != 0 {
        return Err(SecretError::Readable {
            path: path.to_owned(),
            mode,
        });
    }
    let mut secret = Zeroizing::new(String::new());
    file.read_text(MAX_SECRET, &mut secret).map_err(failed)?;
    Ok(secret)
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

fn name_of(path: &Path) -> io::Result<&OsStr> {
    let none = || io::Error::new(ErrorKind::InvalidInput, "it does not name a file");
    path.file_name().ok_or_else(none)
}

fn put(folder: &Folder, name: &OsStr, contents: &[u8], mode: u32, durably: bool) -> io::Result<()> {
    let draft = with_suffix(Path::new(name), ".new").into_os_string();
    write_draft(folder, &draft, contents, mode, durably)
        .and_then(|()| folder.replace(&draft, name))
        .inspect_err(|_| {
            // Nobody needs a part of a file. The error that counts is the first one.
            let _ = folder.remove(&draft);
        })
}

fn write_draft(
    folder: &Folder,
    draft: &OsStr,
    contents: &[u8],
    mode: u32,
    durably: bool,
) -> io::Result<()> {
    // The owner of the folder may be another user, so a draft that is there already is not written through: it
    // could be a link to any file.
    match folder.remove(draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = folder.create_file(draft, OFlag::O_WRONLY, mode)?;
    file.write_all(contents)?;
    if durably {
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::geteuid;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

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
    fn devices_pipes_and_links_stay_what_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let [pipe, link, target] =
            ["pipe", "link", "target"].map(|name| directory.path().join(name));
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
        assert!(replace(&pipe, b"contents", 0o600).is_err());
        let mut reader = OpenOptions::new();
        let reader = reader.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let mut reader = reader.open(&pipe).unwrap();
        write(&pipe, b"contents", 0o600).unwrap();
        let mut contents = String::new();
        reader.read_to_string(&mut contents).unwrap();
        assert_eq!(contents, "contents");
        fs::write(&target, "").unwrap();
        symlink("target", &link).unwrap();
        write(&link, b"contents", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "contents");
        assert!(link.is_symlink());
    }

    #[test]
    fn only_the_key_of_a_certificate_may_be_read_by_a_group() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "text").unwrap();
        for (mode, is_secret, is_key) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o640, false, true),
            (0o440, false, true),
            (0o660, false, false),
            (0o644, false, false),
            (0o604, false, false),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret(&path).is_ok(), is_secret, "{mode:o}");
            assert_eq!(read_tls_key(&path).is_ok(), is_key, "{mode:o}");
        }
        let error = read_tls_key(&path).unwrap_err().to_string();
        assert!(error.contains("run chmod 640"), "{error}");
    }

    #[test]
    fn a_link_in_place_of_the_draft_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "unchanged").unwrap();
        symlink(&other, directory.path().join("kept.new")).unwrap();
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
            assert!(chown(&state, Some(12345), Some(12346)).is_err());
            return;
        }
        chown(&state, Some(12345), Some(12346)).unwrap();
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

    #[test]
    fn a_link_of_root_is_followed_and_none_of_another_user() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (
            directory.path().join("target"),
            directory.path().join("link"),
        );
        fs::create_dir(&target).unwrap();
        symlink("target", &link).unwrap();
        create_folder(&link.join("a"), 0o700).unwrap();
        replace(&link.join("a/kept"), b"1", 0o600).unwrap();
        assert_eq!(fs::read_to_string(target.join("a/kept")).unwrap(), "1");
        if !geteuid().is_root() {
            return;
        }
        std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        for outcome in [
            create_folder(&link, 0o700),
            create_folder(&link.join("b"), 0o700),
            replace(&link.join("kept"), b"1", 0o600),
            open_or_create(&link.join("lock"), 0o600).map(drop),
        ] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("symbolic link"), "{error}");
        }
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
        assert_eq!(fs::metadata(&target).unwrap().uid(), 0);
    }

    #[test]
    fn a_link_in_place_of_a_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (other, link) = (
            directory.path().join("other"),
            directory.path().join("lock"),
        );
        for target in ["other", "missing"] {
            fs::write(&other, "unchanged").unwrap();
            let _ = fs::remove_file(&link);
            symlink(target, &link).unwrap();
            assert!(open_or_create(&link, 0o600).is_err());
        }
        assert!(!directory.path().join("missing").exists());
    }

    /// Swaps a folder for a link to another one again and again, as its owner may. Runs only as root.
    #[test]
    fn a_folder_that_is_swapped_gives_nothing_else_away() {
        if !geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (state, target) = (
            directory.path().join("state"),
            directory.path().join("target"),
        );
        for folder in [&state, &target] {
            fs::create_dir(folder).unwrap();
        }
        chown(&state, Some(12345), Some(12345)).unwrap();
        let (made, away) = (state.join("made"), state.join("away"));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    if fs::rename(&made, &away).is_ok() {
                        let _ = symlink(&target, &made);
                        let _ = std::os::unix::fs::lchown(&made, Some(12345), None);
                        let _ = fs::remove_file(&made);
                        let _ = fs::remove_dir_all(&away);
                    }
                }
            });
            let is_given_away = (0..2000).any(|_| {
                // Fails if it finds a link.
                let _ = create_folder(&made, 0o700);
                let _ = replace(&made.join("file"), b"1", 0o600);
                fs::metadata(&target).unwrap().uid() != 0
            });
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(!is_given_away);
        });
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        replace(&path, b"secret", 0o600).unwrap();
        assert_eq!(*read_secret(&path).unwrap(), "secret");
        for mode in [0o640, 0o604, 0o660, 0o777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read_secret(&path).unwrap_err().to_string();
            assert!(error.contains("run chmod 600 /"), "{error}");
        }
    }

    #[test]
    fn a_pipe_without_a_reader_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = create(&path).unwrap_err().to_string();
        assert!(error.contains("nobody reads"), "{error}");
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&path)
            .unwrap();
        create(&path).unwrap().write_all(b"1").unwrap();
        drop(reader);
    }
}

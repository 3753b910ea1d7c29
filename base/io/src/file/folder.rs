//! An open folder, and the files in it.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, unlinkat};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// The number of symbolic links that are followed in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// An open folder. Its operations act on this folder, even if its path leads to another one by now.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens a folder.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Walk::of(path, None)?.finish()
    }

    /// Opens a folder, and creates it and those that it is in as far as they are missing.
    pub(super) fn create(path: &Path, mode: u32) -> io::Result<Self> {
        Walk::of(path, Some(Mode::from_bits_truncate(mode)))?.finish()
    }

    /// Opens a file that is there and is no link.
    pub(super) fn file(&self, name: &OsStr, access: OFlag) -> io::Result<File> {
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// Creates a file that must not exist. It belongs to the owner of the folder.
    pub(super) fn create_file(&self, name: &OsStr, access: OFlag, mode: u32) -> io::Result<File> {
        let flags = access | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::from_bits_truncate(mode))?;
        self.give_to_owner(&file)?;
        Ok(file.into())
    }

    /// Puts a file in the place of another one, or of a link. Nothing else is replaced, such as a device or a pipe.
    pub(super) fn replace(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let is_file = match fstatat(&self.0, to, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => matches!(kind(&found), SFlag::S_IFREG | SFlag::S_IFLNK),
            Err(Errno::ENOENT) => true,
            Err(error) => return Err(error.into()),
        };
        match is_file {
            true => self.rename(from, to),
            false => Err(io::Error::other("it is there, and is not a file")),
        }
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Waits until names of files are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        // It was opened as a place, which cannot be synced.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        File::from(openat(&self.0, ".", flags, Mode::empty())?).sync_all()
    }

    /// Gives what was created in it to its owner. Only root does and can do this.
    fn give_to_owner(&self, created: impl AsFd) -> io::Result<()> {
        if geteuid().is_root() {
            let owner = fstat(&self.0)?;
            let (user, group) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
            fchown(created, Some(user), Some(group))?;
        }
        Ok(())
    }

    /// Creates a folder in it, and opens that one.
    fn create_folder(&self, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
        let is_new = match mkdirat(&self.0, name, mode) {
            Ok(()) => true,
            // Another process has created it in between.
            Err(Errno::EEXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let created = openat(&self.0, name, flags, Mode::empty())?;
        // The owner of this folder may have put one of their own in its place, which is not given to anybody.
        if is_new && fstat(&created)?.st_uid == geteuid().as_raw() {
            self.give_to_owner(&created)?;
        }
        Ok(created)
    }
}

/// The way along a path, one folder after the other.
struct Walk {
    at: Folder,
    /// The rest of the path.
    rest: VecDeque<OsString>,
    /// The permissions of missing folders, if they are created.
    create: Option<Mode>,
    links: usize,
    path: PathBuf,
}

impl Walk {
    fn of(path: &Path, create: Option<Mode>) -> io::Result<Self> {
        let mut walk = Walk {
            at: start(path)?,
            rest: VecDeque::new(),
            create,
            links: 0,
            path: path.to_owned(),
        };
        walk.enter(path);
        Ok(walk)
    }

    /// Goes along this path before the rest.
    fn enter(&mut self, path: &Path) {
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.rest.push_front(name.to_owned()),
                Component::ParentDir => self.rest.push_front("..".into()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }

    fn finish(mut self) -> io::Result<Folder> {
        while let Some(name) = self.rest.pop_front() {
            self.step(&name)?;
        }
        Ok(self.at)
    }

    fn step(&mut self, name: &OsStr) -> io::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = match (openat(&self.at.0, name, flags, Mode::empty()), self.create) {
            (Err(Errno::ENOENT), Some(mode)) => self.at.create_folder(name, mode)?,
            (found, _) => found?,
        };
        let stat = fstat(&found)?;
        match kind(&stat) {
            SFlag::S_IFDIR => self.at = Folder(found),
            SFlag::S_IFLNK => self.follow(&found, &stat)?,
            _ => return Err(Errno::ENOTDIR.into()),
        }
        Ok(())
    }

    /// Goes on where a link leads to, if it is of a user who may say so.
    fn follow(&mut self, link: &OwnedFd, stat: &FileStat) -> io::Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::ELOOP.into());
        }
        let owner = Uid::from_raw(stat.st_uid);
        if !owner.is_root() && owner != geteuid() {
            let path = self.path.display();
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{path} has a symbolic link of user {owner}, which is not followed: name the folder itself"
                ),
            ));
        }
        let target = PathBuf::from(readlinkat(link, "")?);
        if target.is_absolute() {
            self.at = start(&target)?;
        }
        self.enter(&target);
        Ok(())
    }
}

fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT
}

/// Opens the folder at which a path starts.
fn start(path: &Path) -> io::Result<Folder> {
    let start = if path.is_absolute() { "/" } else { "." };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(Folder(openat(AT_FDCWD, start, flags, Mode::empty())?))
}

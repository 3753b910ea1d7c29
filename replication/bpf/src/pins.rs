//! A receiver's directory in the bpf file system: tables and attachments that the node's next
//! receiver takes over.

use crate::{AttachError, Link, LoadError};
use hawser_kernel::link::pin;
use libbpf_rs::{Map, MapCore, MapHandle, Object, OpenMapMut, OpenObject};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

/// Version of the pinned tables' contents. Raise it when their meaning changes while their sizes do
/// not, which the kernel would not notice: a receiver takes over only tables that were pinned under
/// the same version.
const LAYOUT: u32 = 1;

/// Tables that are derived from the configuration, or belong to it. Every receiver fills its own, which
/// take effect with its program.
const CONFIGURED: [&str; 4] = ["rx_flows", "rx_paths", "rx_destinations", "selectors"];

/// Suffix of a pin's name until everything is attached.
const UNFINISHED: &str = "-next";

#[derive(Debug)]
pub(crate) struct Pins(PathBuf);

impl Pins {
    pub(crate) fn at(directory: PathBuf) -> Self {
        Pins(directory)
    }

    /// Makes an object that is about to be loaded use the pinned tables. Tables of another layout
    /// are not used; returns their names.
    pub(crate) fn reuse_tables(&self, open: &mut OpenObject) -> Result<Vec<String>, LoadError> {
        let mut mismatched = Vec::new();
        for mut table in open.maps_mut() {
            let Some(name) = pinned_name(table.name()) else {
                continue;
            };
            let path = self.table(&name);
            let failed = |source| LoadError::Pinned {
                path: path.clone(),
                source,
            };
            match MapHandle::from_pinned_path(&path) {
                Ok(pinned) if has_layout_of(&pinned, &table).map_err(failed)? => {
                    table.reuse_fd(pinned.as_fd()).map_err(failed)?;
                }
                Ok(_) => mismatched.push(name),
                Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {
                    // Before layouts had versions, tables were pinned next to the attachments.
                    if self.0.join(&name).exists() || self.has_other_layouts() {
                        mismatched.push(name);
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(mismatched)
    }

    /// Pins the tables of a loaded object that are not pinned yet.
    pub(crate) fn stage_tables(
        &self,
        object: &Object,
        staged: &mut Staged,
    ) -> Result<(), AttachError> {
        staged.create(self.tables())?;
        for table in object.maps() {
            let Some(name) = pinned_name(table.name()) else {
                continue;
            };
            if !self.is_pinned(&name, &table) {
                staged.pin(table.as_fd(), self.table(&name))?;
            }
        }
        Ok(())
    }

    pub(crate) fn stage_link(
        &self,
        ifindex: u32,
        link: &Link,
        staged: &mut Staged,
    ) -> Result<(), AttachError> {
        staged.create(self.0.clone())?;
        staged.pin(link.as_fd(), self.link(ifindex))
    }

    /// Returns the pinned attachment to an interface, as long as that interface exists.
    pub(crate) fn open_link(&self, ifindex: u32) -> Option<Link> {
        let link = Link::open(&self.link(ifindex)).ok()?;
        (link.interface().ok()? == Some(ifindex)).then_some(link)
    }

    /// Detaches the pinned attachments to interfaces that are not in `held`, and removes tables of
    /// other layouts. Returns the interfaces.
    pub(crate) fn release_others(&self, held: &BTreeMap<u32, Link>) -> io::Result<Vec<u32>> {
        let mut released = Vec::new();
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(released),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if path == self.tables() || held.keys().any(|ifindex| path == self.link(*ifindex)) {
                continue;
            }
            if path.is_dir() {
                fs::remove_dir_all(&path)?;
                continue;
            }
            if is_link(&path) {
                let link = Link::open(&path)?;
                if let Some(ifindex) = link.interface()? {
                    link.detach()?;
                    released.push(ifindex);
                }
            }
            fs::remove_file(&path)?;
        }
        Ok(released)
    }

    /// Removes what a process left behind that was killed while attaching; attachments that it had
    /// begun end.
    pub(crate) fn remove_unfinished(&self) {
        for folder in [&self.0, &self.tables()] {
            let entries = fs::read_dir(folder)
                .into_iter()
                .flatten()
                .filter_map(Result::ok);
            let unfinished =
                entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(UNFINISHED));
            for entry in unfinished {
                // If one cannot be removed, the interface turns out to be occupied.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.0)
    }

    fn is_pinned(&self, name: &str, table: &Map<'_>) -> bool {
        let id = |table: &MapHandle| table.info().map(|info| info.info.id).ok();
        let own = MapHandle::try_from(table).ok().as_ref().and_then(id);
        own.is_some()
            && MapHandle::from_pinned_path(self.table(name))
                .ok()
                .as_ref()
                .and_then(id)
                == own
    }

    fn has_other_layouts(&self) -> bool {
        let folders = fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        folders
            .map(|entry| entry.path())
            .any(|path| path.is_dir() && path != self.tables())
    }

    fn tables(&self) -> PathBuf {
        self.0.join(format!("tables-{LAYOUT}"))
    }

    fn table(&self, name: &str) -> PathBuf {
        self.tables().join(name)
    }

    fn link(&self, ifindex: u32) -> PathBuf {
        self.0.join(format!("link-{ifindex}"))
    }
}

/// Pins that get their final names all together, or not at all.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// The temporary and the final path of each pin.
    pins: Vec<(PathBuf, PathBuf)>,
    /// Folders that did not exist before, the inner ones first.
    folders: Vec<PathBuf>,
}

impl Staged {
    fn create(&mut self, folder: PathBuf) -> Result<(), AttachError> {
        let missing = folder
            .ancestors()
            .take_while(|folder| !folder.exists())
            .map(Path::to_owned);
        let missing: Vec<_> = missing.collect();
        fs::create_dir_all(&folder)
            .and_then(|()| {
                missing
                    .iter()
                    .rev()
                    .try_for_each(|folder| give_to_owner_of_parent(folder))
            })
            .map_err(|source| AttachError::Pin {
                path: folder,
                source,
            })?;
        self.folders.extend(missing);
        Ok(())
    }

    fn pin(&mut self, object: BorrowedFd<'_>, path: PathBuf) -> Result<(), AttachError> {
        let next = with_suffix(&path, UNFINISHED);
        // A process that was killed at this point has left it.
        let _ = fs::remove_file(&next);
        pin(object, &next)
            .and_then(|()| give_to_owner_of_parent(&next))
            .map_err(|source| AttachError::Pin {
                path: next.clone(),
                source,
            })?;
        self.pins.push((next, path));
        Ok(())
    }

    /// Renames all pins to their final names. If one rename fails, all names are restored.
    pub(crate) fn commit(&mut self) -> Result<(), AttachError> {
        for (at, (next, path)) in self.pins.iter().enumerate() {
            let renamed = back_up(path).and_then(|()| fs::rename(next, path));
            if let Err(source) = renamed {
                let done = &self.pins[..at];
                done.iter().for_each(|(_, path)| restore(path));
                let _ = fs::remove_file(backup_path(path));
                return Err(AttachError::Pin {
                    path: path.clone(),
                    source,
                });
            }
        }
        self.pins
            .drain(..)
            .for_each(|(_, path)| drop(fs::remove_file(backup_path(&path))));
        self.folders.clear();
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // If this fails, the next process that stages the same pins reports it.
        self.pins
            .iter()
            .for_each(|(next, _)| drop(fs::remove_file(next)));
        self.folders
            .iter()
            .for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// Gives a new pin or folder to the owner of the folder that it is in, so that a service which does not run as root can
/// take over what root has left there. Only root can do this.
fn give_to_owner_of_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let (wanted, own) = (fs::metadata(parent)?, fs::symlink_metadata(path)?);
    if (wanted.uid(), wanted.gid()) == (own.uid(), own.gid()) {
        return Ok(());
    }
    match lchown(path, Some(wanted.uid()), Some(wanted.gid())) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// Gives an existing pin a second name as a backup.
fn back_up(path: &Path) -> io::Result<()> {
    match fs::hard_link(path, backup_path(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Restores a pin from its backup, or removes it if there is none.
fn restore(path: &Path) {
    let restored = if backup_path(path).exists() {
        fs::rename(backup_path(path), path)
    } else {
        fs::remove_file(path)
    };
    restored.unwrap_or_else(|error| tracing::error!("cannot restore {}: {error}", path.display()));
}

/// The path of the backup of a pin while it is being replaced.
fn backup_path(path: &Path) -> PathBuf {
    with_suffix(path, &format!("-before{UNFINISHED}"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn is_link(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("link-"))
}

/// Returns the name under which a table is pinned; `None` for tables that are derived from the
/// configuration and for constants, whose names contain a dot.
fn pinned_name(name: &std::ffi::OsStr) -> Option<String> {
    let name = name.to_string_lossy();
    (!name.contains('.') && !CONFIGURED.contains(&&*name)).then(|| name.into_owned())
}

fn has_layout_of(pinned: &MapHandle, table: &OpenMapMut<'_>) -> Result<bool, libbpf_rs::Error> {
    let sizes = (
        pinned.key_size(),
        pinned.value_size(),
        pinned.max_entries(),
        pinned.info()?.info.map_flags,
    );
    Ok(pinned.map_type() == table.map_type()
        && sizes
            == (
                table.key_size(),
                table.value_size(),
                table.max_entries(),
                table.map_flags(),
            ))
}

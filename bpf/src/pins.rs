//! The bpf file system's folder of a receiver: tables and attachments that the next receiver of the node takes over.

use crate::link::pin;
use crate::{AttachError, Link};
use libbpf_rs::{Map, MapCore, MapHandle, Object, OpenMapMut, OpenObject};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// What the kept tables mean. It is to be raised when that changes while their sizes do not, which the kernel would not
/// notice: a receiver takes no tables over that were kept under another number.
const LAYOUT: u32 = 1;

/// Tables that follow from a configuration. Every receiver fills its own, which come into force with its program.
const CONFIGURED: [&str; 3] = ["rx_flows", "rx_paths", "selectors"];

/// What a pin's name ends in until everything is attached.
const UNFINISHED: &str = "-next";

#[derive(Debug)]
pub(crate) struct Pins(PathBuf);

impl Pins {
    pub(crate) fn at(directory: PathBuf) -> Self {
        Pins(directory)
    }

    /// Has an object that is about to be loaded use the kept tables. Those of another layout are left alone; returns
    /// their names.
    pub(crate) fn reuse_tables(
        &self,
        open: &mut OpenObject,
    ) -> Result<Vec<String>, libbpf_rs::Error> {
        let mut unfit = Vec::new();
        for mut table in open.maps_mut() {
            let Some(name) = kept_name(table.name()) else {
                continue;
            };
            match MapHandle::from_pinned_path(self.table(&name)) {
                Ok(kept) if has_layout_of(&kept, &table)? => table.reuse_fd(kept.as_fd())?,
                Ok(_) => unfit.push(name),
                Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {
                    // Before there were layouts, tables were kept beside the attachments.
                    if self.0.join(&name).exists() || self.has_other_layouts() {
                        unfit.push(name);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(unfit)
    }

    /// Pins the tables of a loaded object that are not kept yet.
    pub(crate) fn stage_tables(
        &self,
        object: &Object,
        staged: &mut Staged,
    ) -> Result<(), AttachError> {
        staged.create(self.tables())?;
        for table in object.maps() {
            let Some(name) = kept_name(table.name()) else {
                continue;
            };
            if !self.keeps(&name, &table) {
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

    /// The kept attachment to an interface, as long as there is that interface.
    pub(crate) fn open_link(&self, ifindex: u32) -> Option<Link> {
        let link = Link::open(&self.link(ifindex)).ok()?;
        (link.interface().ok()? == Some(ifindex)).then_some(link)
    }

    /// Ends the kept attachments to interfaces that are not among `held`, and forgets tables of other layouts. Returns
    /// the interfaces.
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

    /// Removes what a process that was killed while it attached has left, which ends attachments that it had begun.
    pub(crate) fn remove_unfinished(&self) {
        for folder in [&self.0, &self.tables()] {
            let entries = fs::read_dir(folder)
                .into_iter()
                .flatten()
                .filter_map(Result::ok);
            let unfinished =
                entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(UNFINISHED));
            for entry in unfinished {
                // One that stays shows when the interface turns out to be occupied.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.0)
    }

    fn keeps(&self, name: &str, table: &Map<'_>) -> bool {
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

/// Pins that get their names together, or not at all.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// Where each is now, and where it is to be.
    pins: Vec<(PathBuf, PathBuf)>,
    /// Folders that were not there before, the inner ones first.
    folders: Vec<PathBuf>,
}

impl Staged {
    fn create(&mut self, folder: PathBuf) -> Result<(), AttachError> {
        let missing = folder
            .ancestors()
            .take_while(|folder| !folder.exists())
            .map(Path::to_owned);
        let missing: Vec<_> = missing.collect();
        fs::create_dir_all(&folder).map_err(|source| AttachError::Pin {
            path: folder,
            source,
        })?;
        self.folders.extend(missing);
        Ok(())
    }

    fn pin(&mut self, object: BorrowedFd<'_>, path: PathBuf) -> Result<(), AttachError> {
        let next = with_suffix(&path, UNFINISHED);
        // A process that was killed here has left it.
        let _ = fs::remove_file(&next);
        pin(object, &next).map_err(|source| AttachError::Pin {
            path: next.clone(),
            source,
        })?;
        self.pins.push((next, path));
        Ok(())
    }

    /// Gives all of them their names. When one is refused, all names are what they were before.
    pub(crate) fn commit(&mut self) -> Result<(), AttachError> {
        for (at, (next, path)) in self.pins.iter().enumerate() {
            let renamed = keep_aside(path).and_then(|()| fs::rename(next, path));
            if let Err(source) = renamed {
                let done = &self.pins[..at];
                done.iter().for_each(|(_, path)| bring_back(path));
                let _ = fs::remove_file(aside(path));
                return Err(AttachError::Pin {
                    path: path.clone(),
                    source,
                });
            }
        }
        self.pins
            .drain(..)
            .for_each(|(_, path)| drop(fs::remove_file(aside(&path))));
        self.folders.clear();
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // A failure shows when the next process stages the same.
        self.pins
            .iter()
            .for_each(|(next, _)| drop(fs::remove_file(next)));
        self.folders
            .iter()
            .for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// Gives what has a name a second one.
fn keep_aside(path: &Path) -> io::Result<()> {
    match fs::hard_link(path, aside(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Gives a name back to what had it, or removes it.
fn bring_back(path: &Path) {
    let before = if aside(path).exists() {
        fs::rename(aside(path), path)
    } else {
        fs::remove_file(path)
    };
    before.unwrap_or_else(|error| {
        tracing::error!("{} is not what it was before: {error}", path.display())
    });
}

/// Where a pin is while another takes its name.
fn aside(path: &Path) -> PathBuf {
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

/// The name under which a table is kept; none for those that follow from the configuration, and for constants, whose
/// names have a dot.
fn kept_name(name: &std::ffi::OsStr) -> Option<String> {
    let name = name.to_string_lossy();
    (!name.contains('.') && !CONFIGURED.contains(&&*name)).then(|| name.into_owned())
}

fn has_layout_of(kept: &MapHandle, table: &OpenMapMut<'_>) -> Result<bool, libbpf_rs::Error> {
    let sizes = (
        kept.key_size(),
        kept.value_size(),
        kept.max_entries(),
        kept.info()?.info.map_flags,
    );
    Ok(kept.map_type() == table.map_type()
        && sizes
            == (
                table.key_size(),
                table.value_size(),
                table.max_entries(),
                table.map_flags(),
            ))
}

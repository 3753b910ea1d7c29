use crate::netns::Namespace;
use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The registry of labs, with one directory for each. Its `owner` file is locked while the owner
/// lives: the kernel releases the lock of a killed process, and no reused process id can be
/// mistaken for it.
const LABS: &str = "/run/hawser/lab";

const BPFFS: &str = "/sys/fs/bpf";

/// The directory in which the agents of a lab pin eBPF objects that have to outlive them: `<lab
/// id>-<role>`.
pub(super) const PINS: &str = "/sys/fs/bpf/hawser";

/// The exclusive right to use names that contain an id. Dropping it kills the processes in the
/// namespaces with such a name, and removes these namespaces and all other things with such a name. If
/// the process is killed, the next claim or [`clear_abandoned`] does this.
#[derive(Debug)]
pub struct Claim {
    id: String,
    _owner: Flock<File>,
}

impl Claim {
    /// Allocates an unused id, and removes what killed processes had claimed.
    ///
    /// # Errors
    /// Without root, or if the registry cannot be written.
    pub fn new() -> Result<Self> {
        static LABS_OF_THIS_PROCESS: AtomicU32 = AtomicU32::new(1);
        let _registry = lock()?;
        mount_bpffs()?;
        clear_unowned()?;
        // Not "." and not "-": bpffs rejects the former, and the latter terminates the id in names.
        let id = format!(
            "{}_{}",
            process::id(),
            LABS_OF_THIS_PROCESS.fetch_add(1, Ordering::Relaxed)
        );
        let directory = Path::new(LABS).join(&id);
        fs::create_dir(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let owner = directory.join("owner");
        fs::write(&owner, format!("pid {}\n", process::id()))
            .with_context(|| format!("cannot write {}", owner.display()))?;
        let owner = Flock::lock(File::open(&owner)?, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("cannot lock {}", owner.display()))?;
        Ok(Claim { id, _owner: owner })
    }

    /// The id. The names of namespaces begin with `hawser-<id>-`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Creates the namespace `hawser-<id>-<role>`.
    ///
    /// # Errors
    /// If there is one for this role, or the kernel refuses it.
    pub fn namespace(&self, role: &str) -> Result<Namespace> {
        Ok(Namespace::create(namespace_name(&self.id, role))?)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = lock().and_then(|_registry| clear(&self.id)) {
            tracing::error!(
                "cannot remove lab {}, the next start of a lab will try again: {error:#}",
                self.id
            );
        }
    }
}

/// Removes all namespaces and files of labs whose process was killed. Building a lab does this too.
pub fn clear_abandoned() -> Result<()> {
    let _registry = lock()?;
    clear_unowned()
}

/// Prevents other processes from adding and removing labs until the result is dropped.
fn lock() -> Result<Flock<File>> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "a lab needs root: run this with sudo"
    );
    fs::create_dir_all(LABS).with_context(|| format!("cannot create {LABS}"))?;
    Flock::lock(File::open(LABS)?, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("cannot lock {LABS}"))
}

/// Mounts bpffs if it is not mounted. systemd mounts it at boot; containers and small systems do
/// not.
fn mount_bpffs() -> Result<()> {
    if statfs(BPFFS)?.filesystem_type() == BPF_FS_MAGIC {
        return Ok(());
    }
    mount(
        Some("bpf"),
        BPFFS,
        Some("bpf"),
        MsFlags::empty(),
        Some("mode=0700"),
    )
    .with_context(|| format!("cannot mount the eBPF file system at {BPFFS}"))
}

fn clear_unowned() -> Result<()> {
    for entry in fs::read_dir(LABS).with_context(|| format!("cannot read {LABS}"))? {
        let entry = entry?;
        let Ok(id) = entry.file_name().into_string() else {
            continue;
        };
        if is_owned(&entry.path().join("owner"))
            .with_context(|| format!("cannot check for the owner of lab {id}"))?
        {
            continue;
        }
        // A new lab can be built nevertheless, because its names differ.
        match clear(&id) {
            Ok(()) => tracing::info!("removed lab {id}, whose process no longer runs"),
            Err(error) => {
                tracing::warn!("cannot remove lab {id}, whose process no longer runs: {error:#}")
            }
        }
    }
    Ok(())
}

fn is_owned(owner: &Path) -> Result<bool> {
    let file = match File::open(owner) {
        // The process was killed before it wrote the file: the file is only written with the
        // registry's lock held, which we hold.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Removes a lab. The registry's directory is removed last, so that a failure leaves the lab
/// registered.
fn clear(id: &str) -> Result<()> {
    for namespace in Namespace::named(&namespace_name(id, "")) {
        namespace.kill_processes()?;
        namespace.delete()?;
    }
    for pins in directories(PINS, &format!("{id}-"))? {
        fs::remove_dir_all(&pins).with_context(|| format!("cannot remove {}", pins.display()))?;
    }
    fs::remove_dir_all(Path::new(LABS).join(id))
        .with_context(|| format!("cannot remove lab {id} from {LABS}"))
}

fn namespace_name(id: &str, role: &str) -> String {
    format!("hawser-{id}-{role}")
}

fn directories(parent: &str, prefix: &str) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {parent}"))?,
    };
    let ours = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    Ok(ours.map(|entry| entry.path()).collect())
}

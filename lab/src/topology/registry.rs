use anyhow::{Context, Result, ensure};
use hawser_io::netns::Namespace;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// One directory a lab. Its `owner` file is locked for as long as the owner lives: the kernel releases the lock of a
/// killed process, and no recycled process id can be mistaken for it.
const LABS: &str = "/run/hawser/lab";

const BPFFS: &str = "/sys/fs/bpf";

/// Where the agents of a lab pin what must outlive them: `<lab id>-<role>`.
pub(super) const PINS: &str = "/sys/fs/bpf/hawser";

/// The right to use every name that contains `id`. Dropping it clears whatever has such a name.
#[derive(Debug)]
pub(super) struct Claim {
    id: String,
    _owner: Flock<File>,
}

impl Claim {
    /// Takes an id that no other lab has, and clears what killed ones left.
    pub(super) fn new() -> Result<Self> {
        static LABS_OF_THIS_PROCESS: AtomicU32 = AtomicU32::new(1);
        let _registry = lock()?;
        mount_bpffs()?;
        clear_unowned()?;
        // Not "." and not "-": bpffs refuses the one, and the other ends the id in names.
        let id = format!(
            "{}_{}",
            process::id(),
            LABS_OF_THIS_PROCESS.fetch_add(1, Ordering::Relaxed)
        );
        let directory = Path::new(LABS).join(&id);
        fs::create_dir(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let owner = directory.join("owner");
        fs::write(&owner, format!("pid {}\n", process::id()))
            .with_context(|| format!("writing {}", owner.display()))?;
        let owner = Flock::lock(File::open(&owner)?, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("locking {}", owner.display()))?;
        Ok(Claim { id, _owner: owner })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = lock().and_then(|_registry| clear(&self.id)) {
            tracing::error!(
                "lab {} is not cleared, the next one will try again: {error:#}",
                self.id
            );
        }
    }
}

/// Removes everything that labs of killed processes left behind. Building a lab does this too.
pub fn clear_abandoned() -> Result<()> {
    let _registry = lock()?;
    clear_unowned()
}

/// Keeps other processes from claiming and clearing until the result is dropped.
fn lock() -> Result<Flock<File>> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "labs need root: run this with sudo"
    );
    fs::create_dir_all(LABS).with_context(|| format!("creating {LABS}"))?;
    Flock::lock(File::open(LABS)?, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("locking {LABS}"))
}

/// systemd mounts it at boot; containers and small systems do not.
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
    .with_context(|| format!("mounting the eBPF file system at {BPFFS}"))
}

fn clear_unowned() -> Result<()> {
    for entry in fs::read_dir(LABS).with_context(|| format!("reading {LABS}"))? {
        let entry = entry?;
        let Ok(id) = entry.file_name().into_string() else {
            continue;
        };
        if is_owned(&entry.path().join("owner"))
            .with_context(|| format!("looking for the owner of lab {id}"))?
        {
            continue;
        }
        // Its names are not ours, so a new lab can be built beside it.
        match clear(&id) {
            Ok(()) => tracing::info!("cleared lab {id}, whose owner is gone"),
            Err(error) => {
                tracing::warn!("lab {id}, whose owner is gone, is not cleared: {error:#}")
            }
        }
    }
    Ok(())
}

fn is_owned(owner: &Path) -> Result<bool> {
    let file = match File::open(owner) {
        // It was killed before it wrote the file: nobody writes one without holding the registry, which we hold.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// The directory of the registry goes last, so that whatever fails here is found again.
fn clear(id: &str) -> Result<()> {
    for namespace in Namespace::named(&namespace_name(id, "")) {
        namespace.kill_processes()?;
        namespace.delete()?;
    }
    for pins in directories(PINS, &format!("{id}-"))? {
        fs::remove_dir_all(&pins).with_context(|| format!("removing {}", pins.display()))?;
    }
    fs::remove_dir_all(Path::new(LABS).join(id))
        .with_context(|| format!("removing lab {id} from {LABS}"))
}

pub(super) fn namespace_name(id: &str, role: &str) -> String {
    format!("hawser-{id}-{role}")
}

fn directories(parent: &str, prefix: &str) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("reading {parent}"))?,
    };
    let ours = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    Ok(ours.map(|entry| entry.path()).collect())
}

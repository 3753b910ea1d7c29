use anyhow::{Context, Result};
use hawser_testbed::netns::Namespace;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;

/// The processor reserved for the emulator, and those left for its neighbours.
#[derive(Debug, Clone)]
pub(super) struct Placement {
    emulator: usize,
    neighbours: Vec<usize>,
}

impl Placement {
    /// Chooses among the processors that this process may use. Returns `None` if there is only one.
    pub(super) fn choose() -> Result<Option<Self>> {
        let allowed = sched_getaffinity(CALLING_THREAD)?;
        let mut cpus: Vec<usize> = (0..CpuSet::count())
            .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
            .collect();
        let emulator = cpus
            .pop()
            .context("this process has no processor in its affinity mask")?;
        Ok((!cpus.is_empty()).then_some(Placement {
            emulator,
            neighbours: cpus,
        }))
    }

    /// Moves the emulator's thread to its processor.
    pub(super) fn pin_emulator(&self, thread: Pid) -> Result<()> {
        let mut cpu = CpuSet::new();
        cpu.set(self.emulator)?;
        Ok(sched_setaffinity(thread, &cpu)?)
    }

    /// Restricts the calling thread, and the threads and processes that it starts from now on, to
    /// the neighbours' processors.
    pub(super) fn restrict_calling_thread(&self) -> Result<AffinityGuard> {
        let before = sched_getaffinity(CALLING_THREAD)?;
        let mut cpus = CpuSet::new();
        self.neighbours.iter().try_for_each(|cpu| cpus.set(*cpu))?;
        sched_setaffinity(CALLING_THREAD, &cpus)?;
        Ok(AffinityGuard(before))
    }

    /// Makes all devices of `namespace` receive on the neighbours' processors (receive packet
    /// steering).
    pub(super) fn steer_receiving(&self, namespace: &Namespace) -> Result<()> {
        let mask = mask(&self.neighbours);
        let steer = || namespace.run(|| steer_devices(&mask))?;
        steer()
            .with_context(|| format!("cannot set receive packet steering in {}", namespace.name()))
    }
}

/// A guard for a thread that is restricted to the neighbours' processors. Dropping it on the same
/// thread lifts the restriction.
#[derive(Debug)]
pub(super) struct AffinityGuard(CpuSet);

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        if let Err(errno) = sched_setaffinity(CALLING_THREAD, &self.0) {
            tracing::warn!("cannot restore the processors of the thread: {errno}");
        }
    }
}

const CALLING_THREAD: Pid = Pid::from_raw(0);

/// Writes the mask of receive packet steering for all devices.
fn steer_devices(mask: &str) -> Result<()> {
    mount_sys()?;
    for device in fs::read_dir("/sys/class/net")? {
        for queue in fs::read_dir(device?.path().join("queues"))? {
            let file = queue?.path().join("rps_cpus");
            if file.exists() {
                fs::write(&file, mask)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
    }
    Ok(())
}

/// Mounts `/sys` for the calling thread. It shows the devices of the namespace in which it was
/// mounted.
fn mount_sys() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(
        None::<&Path>,
        "/",
        None::<&Path>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&Path>,
    )?;
    mount(
        Some("hawser"),
        "/sys",
        Some("sysfs"),
        MsFlags::empty(),
        None::<&Path>,
    )?;
    Ok(())
}

/// Formats a set of processors as the kernel expects it: hexadecimal words of 32 bits, the highest
/// first.
fn mask(cpus: &[usize]) -> String {
    let mut words = vec![0u32; cpus.iter().max().map_or(1, |cpu| cpu / 32 + 1)];
    for cpu in cpus {
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    words
        .iter()
        .rev()
        .map(|word| format!("{word:x}"))
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_a_bit_for_each_processor() {
        assert_eq!(mask(&[0]), "1");
        assert_eq!(mask(&[0, 1, 2, 4]), "17");
        assert_eq!(mask(&[0, 35]), "8,1");
    }
}

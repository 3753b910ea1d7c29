use crate::skeleton::bench_syscalls::{BenchSyscallsSkel, BenchSyscallsSkelBuilder};
use hawser_kernel::load::LoadError;
use hawser_kernel::program::open;
use hawser_kernel::table::{Table, TableError};
use libbpf_rs::MapCore;
use libbpf_rs::skel::OpenSkel;

/// Counts system calls of threads and processes at the kernel's tracepoint for all system calls.
pub struct SyscallCounter {
    programs: BenchSyscallsSkel<'static>,
    _link: libbpf_rs::Link,
}

impl SyscallCounter {
    /// Starts counting, for nobody yet.
    pub fn load() -> Result<Self, LoadError> {
        let failed = LoadError::of("bench_syscalls");
        let open = open::<BenchSyscallsSkelBuilder>().map_err(&failed)?;
        let programs = open.load().map_err(&failed)?;
        let link = programs.progs.count_syscall.attach().map_err(&failed)?;
        Ok(SyscallCounter {
            programs,
            _link: link,
        })
    }

    /// Counts for a thread, or for a process with all its threads.
    pub fn add(&self, id: u32) -> Result<(), TableError> {
        self.programs.maps.counted.set(&id, &1u8)
    }

    /// Ends counting for a thread or process.
    pub fn remove(&self, id: u32) -> Result<(), TableError> {
        self.programs.maps.counted.remove(&id)
    }

    /// Returns the system calls so far by number, those that there were.
    pub fn counts(&self) -> Result<Vec<(u32, u64)>, TableError> {
        let table = &self.programs.maps.syscalls;
        let count = |number| {
            let counts = table.per_cpu::<u64>(number)?;
            Ok((number, counts.iter().sum()))
        };
        let counts = (0..table.max_entries()).map(count);
        let counts = counts.collect::<Result<Vec<_>, TableError>>()?;
        Ok(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    }
}

//! Child processes in network namespaces, which never outlive the process that started them.

use crate::netns::{Error, Namespace};
use hawser_io::process::spawn;
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// A child process in a network namespace. It is killed when this value is dropped and when this
/// process dies.
///
/// It has its own process group, so that Ctrl-C reaches only the process at the terminal, which
/// then stops its children in the order it chooses.
#[derive(Debug)]
pub struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` in `namespace`, on the processors that the calling thread may use.
    pub fn spawn(namespace: &Namespace, mut command: Command) -> Result<Self, Error> {
        namespace.confine(&mut command)?;
        inherit_processors(&mut command);
        let action = format!("start {}", command.get_program().to_string_lossy());
        let child = spawn(command).map_err(|source| Error::Kernel {
            namespace: namespace.name().to_owned(),
            action,
            source,
        })?;
        Ok(Process { child, ended: None })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes the child's standard output, if its command pipes it and it was not taken before.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns the child's exit status if it has exited.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Asks the child to exit with SIGTERM, and kills it if it has not exited after `grace`.
    pub fn stop(mut self, grace: Duration) -> io::Result<ExitStatus> {
        const POLL_INTERVAL: Duration = Duration::from_millis(2);
        let deadline = Instant::now() + grace;
        if self.ended()?.is_none() {
            kill(self.pid(), Signal::SIGTERM)?;
        }
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                killpg(self.pid(), Signal::SIGKILL)?;
                return self.child.wait();
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Kills the child and its process group with SIGKILL, if it has not exited, and waits until it has.
    pub fn kill(&mut self) -> io::Result<()> {
        // Once the child has been waited for, its number may belong to another process.
        if self.ended()?.is_none() {
            killpg(self.pid(), Signal::SIGKILL)?;
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(
            i32::try_from(self.child.id()).expect("the kernel's process ids are positive i32"),
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Gives the child the caller's processor affinity; it would inherit that of the forking thread.
fn inherit_processors(command: &mut Command) {
    let caller = sched_getaffinity(Pid::from_raw(0));
    let inherit = move || Ok(sched_setaffinity(Pid::from_raw(0), &caller?)?);
    // SAFETY: the closure runs between fork and exec and makes one system call; it does not
    // allocate.
    unsafe { command.pre_exec(inherit) };
}

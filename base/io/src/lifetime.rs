use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes `command` die when the thread that starts it exits.
pub(crate) fn die_with_thread(command: &mut Command) {
    let parent = Pid::this();
    let die_with_parent = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above, and then the signal is never sent.
        if getppid() == parent {
            Ok(())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    };
    // SAFETY: the closure runs between fork and exec and makes two system calls; it does not
    // allocate.
    unsafe { command.pre_exec(die_with_parent) };
}

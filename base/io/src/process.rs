//! Child processes that never outlive the process that started them.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Starts a command in a process group of its own. The child is killed when this process dies, however it dies.
///
/// It is forked on a thread that lasts as long as this process: the kernel sends the parent-death signal
/// when the *thread* that forked exits.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(mut command: Command) -> io::Result<Child> {
    type Request = (Command, Sender<io::Result<Child>>);
    static FORKING: LazyLock<Sender<Request>> = LazyLock::new(|| {
        let (requests, inbox) = channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // The caller waits for the answer, so sending cannot fail.
                let _ = answer.send(command.spawn());
            }
        });
        requests
    });

    command.process_group(0);
    die_with_thread(&mut command);
    let (answer, child) = channel();
    FORKING
        .send((command, answer))
        .expect("the forking thread never ends");
    child
        .recv()
        .expect("the forking thread answers every request")
}

/// Makes `command` die when the thread that starts it exits.
pub fn die_with_thread(command: &mut Command) {
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

//! Named network namespaces with the same naming as iproute2, so that `ip netns exec NAME` enters
//! them too.
//!
//! Only the network changes: threads and children keep the mounts of this process, so that
//! `/sys/fs/bpf` stays visible. Links, addresses and routes are set up by passing a script to `ip
//! -batch`. Programs to install change links, addresses and routes with [`netlink`](hawser_io::netlink).

use hawser_io::process::die_with_thread;
use hawser_units::Line;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{panic, thread};

const NAMES: &str = "/run/netns";

/// The longest time that a killed process may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason that an operation on a network namespace failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Network namespaces need root.
    #[error("network namespaces need root: run this with sudo")]
    NotRoot,
    /// A tool of the distribution is missing.
    #[error("`{program}` is not installed: install the package {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The package that contains it.
        package: &'static str,
    },
    /// A tool failed.
    #[error("in namespace {namespace}: `{command}`: {message}")]
    Failed {
        /// The namespace.
        namespace: String,
        /// The command line, or the line of a batch.
        command: String,
        /// The tool's error message.
        message: String,
    },
    /// A system call failed.
    #[error("in namespace {namespace}: {action}")]
    Kernel {
        /// The namespace.
        namespace: String,
        /// The attempted action.
        action: String,
        /// The error from the kernel.
        source: io::Error,
    },
}

/// A network namespace by its name.
///
/// This is a name and not a guard: the caller decides when to [`delete`](Namespace::delete) the
/// namespace.
///
/// ```no_run
/// # use hawser_testbed::netns::Namespace;
/// let edge = Namespace::create("hawser-example-edge")?;
/// edge.ip("link add wan0 type veth peer name wan1\naddr add 10.0.0.1/24 dev wan0\nlink set wan0 up")?;
/// edge.sysctl("net.ipv4.ip_forward", "1")?;
/// let listener = edge.run(|| std::net::UdpSocket::bind("10.0.0.1:0"))?;
/// edge.delete()?;
/// # Ok::<_, hawser_testbed::netns::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a new namespace with its loopback device up. It is an error if the name is taken.
    pub fn create(name: impl Into<String>) -> Result<Self, Error> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let namespace = Namespace { name: name.into() };
        let mut add = Command::new("ip");
        add.args(["netns", "add", &namespace.name]);
        namespace.finish(add, IPROUTE2, "")?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Returns all namespaces on this machine whose name starts with `prefix`.
    pub fn named(prefix: &str) -> Vec<Self> {
        // If the directory does not exist, no namespace was ever named here.
        let Ok(entries) = fs::read_dir(NAMES) else {
            return Vec::new();
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names
            .filter(|name| name.starts_with(prefix))
            .map(|name| Namespace { name })
            .collect()
    }

    /// Returns the name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file that represents the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.name)
    }

    /// Moves the calling thread into the namespace for the rest of its lifetime.
    ///
    /// Note that `/proc/net` is that of the main thread: a thread in a namespace must read
    /// `/proc/thread-self/net`.
    pub fn enter(&self) -> Result<(), Error> {
        setns(self.open()?, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| self.error("enter it", errno.into()))
    }

    /// Runs `work` in the namespace, on a separate thread. Sockets that it creates stay in the
    /// namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| self.enter().map(|()| work()));
            inside
                .join()
                .unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
    }

    /// Returns a command that will run in the namespace. For a long-running command see
    /// [`Process`](crate::process::Process).
    pub fn command(&self, program: &str) -> Result<Command, Error> {
        let mut command = Command::new(program);
        self.confine(&mut command)?;
        Ok(command)
    }

    /// Makes `command` run in the namespace.
    pub fn confine(&self, command: &mut Command) -> Result<(), Error> {
        let namespace = self.open()?;
        let enter = move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?);
        // SAFETY: the closure runs between fork and exec and makes one system call; it does not
        // allocate.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// Runs `batch`, one command per line without the leading `ip`, through iproute2. Stops at the
    /// first that fails.
    pub fn ip(&self, batch: &str) -> Result<(), Error> {
        let mut ip = Command::new("ip");
        ip.args(["-n", &self.name, "-batch", "-"]);
        self.finish(ip, IPROUTE2, batch)
    }

    /// Switches offloads of `device`, named as for `ethtool -K`: `[("gro", false)]`.
    pub fn offloads(&self, device: &str, settings: &[(&str, bool)]) -> Result<(), Error> {
        let mut ethtool = self.command("ethtool")?;
        ethtool.args(["-K", device]);
        for &(feature, on) in settings {
            ethtool.args([feature, if on { "on" } else { "off" }]);
        }
        self.finish(
            ethtool,
            Tool {
                program: "ethtool",
                package: "ethtool",
            },
            "",
        )
    }

    /// Sets a kernel parameter of the namespace, such as `net.ipv4.ip_forward`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), Error> {
        let file = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.run(|| fs::write(file, value))?.map_err(|source| {
            self.error(format!("set the kernel parameter {key} to {value}"), source)
        })
    }

    /// Kills every process in the namespace and waits until they have exited.
    pub fn kill_processes(&self) -> Result<(), Error> {
        // A killed process may just have forked.
        while self.kill_once()? > 0 {}
        Ok(())
    }

    /// Removes the name. The kernel removes the devices once no process and no socket is left
    /// inside.
    pub fn delete(&self) -> Result<(), Error> {
        let mut delete = Command::new("ip");
        delete.args(["netns", "delete", &self.name]);
        self.finish(delete, IPROUTE2, "")
    }

    /// Goes through all processes once. Returns how many of them had to be killed.
    fn kill_once(&self) -> Result<usize, Error> {
        let inside = self.inode()?;
        let lives_inside = |pid: i32| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|file| (file.dev(), file.ino()) == inside)
        };
        let entries =
            fs::read_dir("/proc").map_err(|source| self.error("list processes", source))?;
        let pids =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let mut killed = 0;
        for pid in pids.filter(|pid| *pid != nix::unistd::getpid().as_raw() && lives_inside(*pid)) {
            // The process id may be reused between the check and the signal, so the signal goes
            // through a descriptor that was opened before the second check.
            let Ok(handle) = pidfd_open(pid) else {
                continue;
            };
            if lives_inside(pid) {
                kill_and_wait(&handle)
                    .map_err(|source| self.error(format!("kill process {pid}"), source))?;
                killed += 1;
            }
        }
        Ok(killed)
    }

    fn open(&self) -> Result<File, Error> {
        File::open(self.path()).map_err(|source| self.error("open it", source))
    }

    fn inode(&self) -> Result<(u64, u64), Error> {
        let file = fs::metadata(self.path()).map_err(|source| self.error("look at it", source))?;
        Ok((file.dev(), file.ino()))
    }

    fn error(&self, action: impl Into<String>, source: io::Error) -> Error {
        Error::Kernel {
            namespace: self.name.clone(),
            action: action.into(),
            source,
        }
    }

    /// Runs a tool with `input` until it exits; its error output becomes the error.
    fn finish(&self, mut command: Command, tool: Tool, input: &str) -> Result<(), Error> {
        let mut child = self.spawn(&mut command, tool)?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let written = match stdin.write_all(input.as_bytes()) {
            // The tool stopped reading at a line that it rejects, which it reports itself.
            Err(source) if source.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        };
        drop(stdin);
        let output = written
            .and_then(|()| child.wait_with_output())
            .map_err(|source| self.error(format!("run {}", tool.program), source))?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let command = failed_line(&message, input)
            .map_or_else(|| command_line(&command), |line| format!("ip {line}"));
        Err(Error::Failed {
            namespace: self.name.clone(),
            command,
            message: Line::of_output(message.as_bytes()).into_string(),
        })
    }

    fn spawn(&self, command: &mut Command, tool: Tool) -> Result<Child, Error> {
        // A tool that a killed process had started must not continue while the next process cleans
        // up.
        die_with_thread(command);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        child.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::Missing {
                program: tool.program,
                package: tool.package,
            },
            _ => self.error(format!("run {}", tool.program), source),
        })
    }
}

#[derive(Clone, Copy)]
struct Tool {
    program: &'static str,
    package: &'static str,
}

const IPROUTE2: Tool = Tool {
    program: "ip",
    package: "iproute2",
};

/// Returns the line of `batch` to which iproute2's "Command failed -:3" refers.
fn failed_line<'a>(message: &str, batch: &'a str) -> Option<&'a str> {
    let (_, number) = message.rsplit_once("Command failed -:")?;
    batch
        .lines()
        .nth(number.trim().parse::<usize>().ok()?.checked_sub(1)?)
}

fn command_line(command: &Command) -> String {
    let words: Vec<_> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .collect();
    words
        .iter()
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and nothing else owns it; descriptors fit an i32.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

fn kill_and_wait(process: &OwnedFd) -> io::Result<()> {
    match kill(process) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        killed => killed?,
    }
    let timeout = PollTimeout::try_from(KILL_TIMEOUT).expect("seconds fit a poll timeout");
    match poll(
        &mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)],
        timeout,
    )? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "it has not exited")),
        _ => Ok(()),
    }
}

fn kill(process: &OwnedFd) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open, and a null siginfo means an ordinary kill.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGKILL,
            no_info,
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_batch_names_its_line() {
        let batch = "link set lo up\naddr add nonsense dev lo\nlink set lo down";
        let message =
            "Error: any valid prefix is expected rather than \"nonsense\".\nCommand failed -:2";
        assert_eq!(
            failed_line(message, batch),
            Some("addr add nonsense dev lo")
        );
        assert_eq!(failed_line("Cannot open network namespace", batch), None);
        assert_eq!(failed_line("Command failed -:0", batch), None);
    }
}

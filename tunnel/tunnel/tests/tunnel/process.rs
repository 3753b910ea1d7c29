//! Runs an end of a tunnel, or a controller, in a process of its own by starting this test binary
//! again.

use clap::Parser;
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The environment variable with the command line to run instead of a test.
const COMMAND_LINE: &str = "HAWSER_TUNNEL_TEST";

#[derive(Parser)]
enum Cli {
    Tunnel(hawser_tunnel::Args),
    Controller(hawser_controller::Args),
}

/// Starts `hawser WHAT --config FILE` in the namespace.
pub(crate) fn start(namespace: &Namespace, what: &str, config: &Path) -> Process {
    run(
        namespace,
        what,
        config,
        Command::new(std::env::current_exe().unwrap()),
    )
}

/// As [`start`], with the folder `etc` in place of `/etc`, and the programs of a folder before those of
/// the machine.
pub(crate) fn start_with_etc(
    namespace: &Namespace,
    what: &str,
    config: &Path,
    etc: &Path,
    programs: &Path,
) -> Process {
    let mut command = Command::new("unshare");
    command
        .args(with_etc(etc))
        .arg(std::env::current_exe().unwrap());
    put_first(programs, &mut command);
    run(namespace, what, config, command)
}

/// As [`start`], with the programs of a folder before those of the machine.
pub(crate) fn start_with_programs(
    namespace: &Namespace,
    what: &str,
    config: &Path,
    programs: &Path,
) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    put_first(programs, &mut command);
    run(namespace, what, config, command)
}

/// As [`start`], with this limit of open files.
pub(crate) fn start_with_files(
    namespace: &Namespace,
    what: &str,
    config: &Path,
    limit: u32,
) -> Process {
    let mut command = Command::new("prlimit");
    command
        .arg(format!("--nofile={limit}:{limit}"))
        .arg(std::env::current_exe().unwrap());
    run(namespace, what, config, command)
}

/// Makes a program find the programs of a folder before those of the machine.
fn put_first(programs: &Path, command: &mut Command) {
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", programs.display()));
}

/// Writes a shell script into a folder of programs, which is made if it is missing.
pub(crate) fn write_program(programs: &Path, name: &str, script: &str) {
    fs::create_dir_all(programs).unwrap();
    fs::write(programs.join(name), script).unwrap();
    fs::set_permissions(programs.join(name), Permissions::from_mode(0o755)).unwrap();
}

/// Returns the arguments of `unshare` that precede a program, to run it with the folder `etc` in place
/// of `/etc`.
pub(crate) fn with_etc(etc: &Path) -> [String; 5] {
    let mount = format!("mount --bind {} /etc && exec \"$@\"", etc.display());
    ["--mount", "sh", "-c", &mount, "sh"].map(str::to_owned)
}

fn run(namespace: &Namespace, what: &str, config: &Path, mut command: Command) -> Process {
    command.args([
        "--exact",
        "process::is_another_program_when_told_to",
        "--nocapture",
    ]);
    command.env(
        COMMAND_LINE,
        format!("hawser {what} --config {}", config.display()),
    );
    command.stdout(std::process::Stdio::null());
    Process::spawn(namespace, command).unwrap()
}

/// Returns the resident memory of a process, in bytes.
pub(crate) fn resident_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

#[test]
fn is_another_program_when_told_to() {
    let Ok(command_line) = std::env::var(COMMAND_LINE) else {
        return;
    };
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let ended = match Cli::try_parse_from(command_line.split(' ')).unwrap() {
        Cli::Tunnel(args) => hawser_tunnel::run(&args),
        Cli::Controller(args) => hawser_controller::run(&args),
    };
    // Some tests expect an error: it is not a panic, as it is none in the program of the product.
    if let Err(error) = ended {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}

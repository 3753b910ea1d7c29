//! Runs tests on the kernels that `setup.sh kernels` has unpacked, in emulated machines.

use crate::programs;
use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, TargetKind};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;

/// The packages of the eBPF programs.
const PROGRAMS: [&str; 2] = ["hawser-replication-bpf", "hawser-media-bpf"];

/// The packages and names of further tests, and the arguments of each executable. The machine has one
/// slow processor, so tests that measure run one at a time.
const TESTS: [(&str, &str, &str); 3] = [
    ("hawser-publish", "departures", ""),
    ("hawser-publish", "queueing", "--test-threads=1 --nocapture"),
    ("hawser-view", "kernel_paced", "--nocapture"),
];

/// The release of Debian with the oldest kernel that the programs are made for, 6.1. What needs more
/// there: TCX, of Linux 6.6, a question for a driver's abilities, of 6.3, and of 6.2 a frame's kind in
/// XDP, which tells frames to other hosts.
const OLDEST: &str = "bookworm";
const PROGRAM_THAT_NEEDS_NEWER: &str = "relay_network";
/// Modules and tests of the others.
const TESTS_THAT_NEED_NEWER: [&str; 10] = [
    "clones::",
    "signalling::",
    "viewer::",
    "a_copy_to_another_link_layer_address_is_not_the_first_one",
    "a_frame_to_another_link_layer_address_passes_untouched",
    "frames_are_accepted_while_the_program_is_attached",
    "local_gso_packets_are_segmented_by_the_loop_and_replicated",
    "local_packets_leave_by_every_path_over_ipv4",
    "local_packets_probe_a_path_over_ipv6_by_the_loop",
    "replication_survives_a_thousand_changes_of_interfaces",
];

/// The release with a new kernel.
const NEWEST: &str = "trixie";

/// Runs the tests on both kernels at once, each to its end.
///
/// One machine keeps one processor busy, and how busy the others are makes no difference to its results.
pub(crate) fn test(workspace: &Metadata) -> Result<()> {
    let without = TESTS_THAT_NEED_NEWER
        .map(|test| format!(" --skip {test}"))
        .concat();
    let (mut on_oldest, mut on_newest) = (Vec::new(), Vec::new());
    for package in PROGRAMS {
        for test in programs_tests(workspace, package)? {
            let executable = executable(package, &test)?;
            if test != PROGRAM_THAT_NEEDS_NEWER {
                on_oldest.push(format!("{executable}{without}"));
            }
            on_newest.push(executable);
        }
    }
    for (package, test, arguments) in TESTS {
        let command = format!("{} {arguments}", executable(package, test)?);
        on_oldest.push(command.clone());
        on_newest.push(command);
    }
    let mut machines = Vec::new();
    for (release, commands) in [(OLDEST, on_oldest), (NEWEST, on_newest)] {
        let kernel = workspace.target_directory.join("kernel").join(release);
        let mut script = Command::new(workspace.workspace_root.join("xtask/kernel.sh"));
        script.arg(kernel).args(commands).stdout(Stdio::piped());
        let machine = script.spawn();
        machines.push((
            release,
            machine.with_context(|| format!("cannot run {script:?}"))?,
        ));
    }
    thread::scope(|scope| {
        for (release, machine) in &mut machines {
            let output = machine.stdout.take().expect("the output is a pipe");
            scope.spawn(|| print_lines_of(release, output));
        }
    });
    let mut failed = Vec::new();
    for (release, mut machine) in machines {
        if !machine.wait()?.success() {
            failed.push(release);
        }
    }
    if !failed.is_empty() {
        bail!(
            "make kernels: failed on the kernel of {}",
            failed.join(" and ")
        );
    }
    Ok(())
}

/// Prints each line of a machine's output after the name of its release.
fn print_lines_of(release: &str, output: impl Read) {
    for line in BufReader::new(output).split(b'\n') {
        match line {
            Ok(line) => println!("{release}: {}", String::from_utf8_lossy(&line)),
            Err(error) => return eprintln!("cannot read the output of {release}: {error}"),
        }
    }
}

/// Returns the names of the tests of a package of eBPF programs.
fn programs_tests(workspace: &Metadata, name: &str) -> Result<Vec<String>> {
    let package = workspace
        .workspace_packages()
        .into_iter()
        .find(|package| package.name == name)
        .with_context(|| format!("no package {name}"))?;
    let tests = package.targets.iter().filter(|target| {
        target.kind.contains(&TargetKind::Test) && !target.required_features.is_empty()
    });
    Ok(tests.map(|target| target.name.clone()).collect())
}

/// Builds a test and returns the path of its executable.
fn executable(package: &str, test: &str) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--locked", "--all-features"]);
    cargo.args(["--package", package, "--test", test]);
    let program = programs::build(cargo)?.pop();
    let program = program.with_context(|| format!("{package} has no test {test}"))?;
    Ok(program.executable.into_string())
}

//! All checks and tests that a change must pass, with a summary of the skipped ones and the
//! reasons.

use crate::machine::{self, Root};
use crate::programs::{self, Program, Way};
use crate::{alone, circles, products, reference, silence, words};
use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, TargetKind};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const PURE_TARGET: &str = "wasm32-unknown-unknown";

/// The target of edge nodes and vehicles, and the linker and runner for it on this machine.
const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";
const ARM_LINKER: &str = "aarch64-linux-gnu-gcc";
const ARM_RUNNER: [&str; 3] = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"];

/// The features that integration tests require which need root: to load eBPF programs, to create
/// network namespaces, and to emulate networks in real time.
const EBPF: &str = "ebpf-tests";
const NETWORK: &str = "network-tests";
const REAL_TIME: &str = "real-time-tests";

/// The feature that tests require which need a kernel with parts that not every one has: `kernels` runs
/// them.
const KERNEL: &str = "kernel-tests";

/// The feature that tests require which need programs of others: `make interop` runs them.
const INTEROP: &str = "interop-tests";

/// The feature that tests require which need the viewer's page: its decoder in WASM.
const PAGE: &str = "page-tests";

/// Number of test programs that run at the same time.
const PROGRAMS_AT_ONCE: usize = 2;

/// Number of tests per core that a program runs at the same time. Many wait for other processes and for timers.
const TESTS_PER_CORE: usize = 2;

/// Number of random requests for each operation of the controller, in addition to those that cover
/// its OpenAPI document.
const HOSTILE_REQUESTS: &str = "10";

/// Exit code of a script that cannot run on this machine.
const CANNOT_RUN: i32 = 77;

/// The programs that tests and scripts start from the folder of the build.
const PROGRAMS: [&str; 7] = [
    "hawser",
    "hawser-agent",
    "hawser-tunnel",
    "hawser-media",
    "hawser-controller",
    "hawser-ctl",
    "hawser-lab",
];

/// The same in every tier, so that no crate is compiled again for other features.
const TESTS: [&str; 4] = ["test", "--no-fail-fast", "--workspace", "--all-features"];

#[derive(PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped(String),
}

struct Step {
    name: String,
    outcome: Outcome,
    took: Duration,
}

/// The totals of the result lines of `cargo test`, and the tests that failed by name. Each step that
/// failed or was skipped as a whole adds one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
}

#[derive(Default)]
struct Run {
    steps: Vec<Step>,
    count: Count,
}

/// Runs all checks and tests. The later steps run even if one fails.
///
/// Steps that this machine cannot run are skipped and listed. With `CI=true` a skipped step is a
/// failure.
pub(crate) fn test(workspace: &Metadata) -> Result<()> {
    let mut run = Run::default();
    run.checks(workspace)?;
    let root = machine::root();
    let hides = root
        .as_ref()
        .map_err(String::clone)
        .and_then(|root| machine::without_mounts(root).map_or(Ok(root), Err));
    run.step("tests: pure", |count| {
        pure_tests(workspace, hides.is_ok(), count)
    })?;
    for product in alone::products() {
        run.step(&format!("tests: pure, {product} alone"), |count| {
            tests_alone(workspace, product, &hides, count)
        })?;
    }
    run.step("tests: decoder in WASM", |count| {
        let mut tests = cargo_command(&TESTS);
        for test in tests_of(workspace, |requires| requires(PAGE)) {
            tests.args(["--test", &test]);
        }
        match without_page(workspace)? {
            Some(reason) => Ok(Outcome::Skipped(reason)),
            None => self::run(tests, &[], &threads()?, count, |_| true),
        }
    })?;
    run.step("tests: coding on ARM", arm_tests)?;
    run.tests_with_features(workspace, &root)?;
    run.step("hostile requests", |_| hostile_requests(workspace))?;
    run.step("generated client", |_| generated_client(workspace))?;
    run.finish()
}

impl Step {
    fn print(&self) {
        let verdict = match &self.outcome {
            Outcome::Passed => "ok".to_string(),
            Outcome::Failed => "FAILED".to_string(),
            Outcome::Skipped(reason) => format!("skipped: {reason}"),
        };
        let took = self.took.as_secs_f64();
        println!("{:34} {took:>6.1} s  {verdict}", self.name);
    }
}

impl Run {
    fn checks(&mut self, workspace: &Metadata) -> Result<()> {
        self.step("format", |_| cargo(&["fmt", "--all", "--check"]))?;
        self.step("products", |_| {
            Ok(passed_or_printed(products::check(workspace)))
        })?;
        self.step("circles of files", |_| {
            Ok(passed_or_printed(circles::check(workspace)))
        })?;
        self.step("reference pages", |_| {
            let root = workspace.workspace_root.as_std_path();
            Ok(passed_or_printed(reference::check(root)))
        })?;
        self.step("words", |_| {
            let root = workspace.workspace_root.as_std_path();
            Ok(passed_or_printed(words::check(root)))
        })?;
        self.step("pure crates without an operating system", |_| {
            pure_crates(workspace)
        })?;
        self.step("licences", |_| licences())?;
        // Programs contain it.
        self.step("viewer's page", |_| page(workspace))?;
        self.step("programs and lints", |_| {
            let mut build = cargo_command(&TESTS);
            build.args(["--lib", "--bins", "--examples", "--tests", "--benches"]);
            match programs::build(build) {
                Ok(_) => programs(),
                Err(error) => Ok(passed_or_printed(Err(error))),
            }
        })
    }

    fn tests_with_features(
        &mut self,
        workspace: &Metadata,
        root: &Result<Root, String>,
    ) -> Result<()> {
        self.step("tests: eBPF", |count| {
            let tests = tests_of(workspace, |requires| requires(EBPF) && !requires(NETWORK));
            tests_as_root(&tests, root, machine::without_ebpf, &threads()?, count)
        })?;
        let without_network =
            |root: &Root| machine::without_ebpf(root).or_else(|| machine::without_namespaces(root));
        self.step("tests: network", |count| {
            let tests = tests_of(workspace, |requires| requires(NETWORK));
            tests_as_root(&tests, root, without_network, &threads()?, count)
        })?;
        self.step("tests: real time", |count| {
            let tests = tests_of(workspace, |requires| requires(REAL_TIME));
            tests_as_root(&tests, root, without_network, &ONE_AT_A_TIME, count)
        })
    }

    fn step(&mut self, name: &str, run: impl FnOnce(&mut Count) -> Result<Outcome>) -> Result<()> {
        println!("\n== {name}");
        let start = Instant::now();
        let failed_before = self.count.failed;
        let outcome = run(&mut self.count)?;
        match &outcome {
            Outcome::Skipped(reason) => {
                println!("skipped: {reason}");
                self.count.skipped += 1;
            }
            Outcome::Failed if self.count.failed == failed_before => self.count.failed += 1,
            Outcome::Passed | Outcome::Failed => {}
        }
        self.steps.push(Step {
            name: name.to_owned(),
            outcome,
            took: start.elapsed(),
        });
        Ok(())
    }

    fn finish(self) -> Result<()> {
        println!("\n== summary");
        self.steps.iter().for_each(Step::print);
        let Count {
            passed,
            failed,
            skipped,
            failures,
        } = self.count;
        for name in failures {
            println!("failed: {name}");
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed > 0 {
            bail!("make test: failed");
        }
        let steps_skipped = self
            .steps
            .iter()
            .any(|step| matches!(step.outcome, Outcome::Skipped(_)));
        if steps_skipped && std::env::var("CI").is_ok_and(|ci| ci == "true") {
            bail!("make test: a step was skipped, which CI does not accept");
        }
        println!(
            "make test: ok{}",
            if steps_skipped {
                ", but not all of it ran"
            } else {
                ""
            }
        );
        Ok(())
    }
}

fn passed_or_printed(result: Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed,
        Err(error) => {
            eprintln!("{error:#}");
            Outcome::Failed
        }
    }
}

/// Checks that the pure crates build without an operating system. Their `clippy.toml` forbids clocks, sockets, threads
/// and files by name. A target without them forbids the rest.
fn pure_crates(workspace: &Metadata) -> Result<Outcome> {
    let pure = products::pure_crates(workspace)?;
    if let Some(reason) = without_target(PURE_TARGET)? {
        return Ok(Outcome::Skipped(reason));
    }
    let mut check = cargo_command(&["check", "--target", PURE_TARGET]);
    // The lints forbid types that this target does not have.
    check.env_remove("RUSTC_WORKSPACE_WRAPPER");
    for name in &pure {
        check.args(["--package", name]);
    }
    outcome(check)
}

/// Builds the viewer's page, with which the programs are built next, and checks its sources.
fn page(workspace: &Metadata) -> Result<Outcome> {
    if let Some(reason) = without_page(workspace)? {
        return Ok(Outcome::Skipped(reason));
    }
    let web = workspace.workspace_root.join("web");
    let mut build = Command::new(web.join("build.sh"));
    build.env("CARGO_TARGET_DIR", &workspace.target_directory);
    let mut check = Command::new("npm");
    check.args(["run", "--silent", "check"]);
    check.current_dir(web.join("viewer"));
    Ok(match outcome(build)? {
        Outcome::Passed => outcome(check)?,
        other => other,
    })
}

/// Returns the reason that the viewer's page cannot be built, if there is one.
fn without_page(workspace: &Metadata) -> Result<Option<String>> {
    let build = workspace.workspace_root.join("web/build.sh");
    let has_tools = machine::succeeds(build.as_str(), &["--check"]);
    let missing = (!has_tools).then(|| "needs npm and Node 20.19 or later".to_owned());
    Ok(missing.or(without_target(PURE_TARGET)?))
}

/// Returns the reason that programs for `target` cannot be compiled, if there is one.
fn without_target(target: &str) -> Result<Option<String>> {
    let installed = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .output()?;
    let is_installed = Path::new(String::from_utf8_lossy(&installed.stdout).trim()).exists();
    Ok((!is_installed).then(|| format!("needs `rustup target add {target}`")))
}

/// Tests the kernels of network coding for ARM, which this machine's processor does not have.
fn arm_tests(count: &mut Count) -> Result<Outcome> {
    if cfg!(target_arch = "aarch64") {
        println!("this machine has an ARM processor: the pure tests include them");
        return Ok(Outcome::Passed);
    }
    if let Some(reason) = without_target(ARM_TARGET)? {
        return Ok(Outcome::Skipped(reason));
    }
    if let Some(tool) = [ARM_LINKER, ARM_RUNNER[0]]
        .into_iter()
        .find(|tool| !machine::succeeds(tool, &["--version"]))
    {
        return Ok(Outcome::Skipped(format!("needs {tool}")));
    }
    let test = [
        "test",
        "--no-fail-fast",
        "--package",
        "hawser-coding",
        "--test",
        "kernels",
    ];
    let mut command = cargo_command(&test);
    command.args(["--target", ARM_TARGET]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", ARM_LINKER);
    command.args(runner(ARM_TARGET, &[], &ARM_RUNNER)?);
    counted(command, count)
}

fn licences() -> Result<Outcome> {
    if !machine::succeeds("cargo", &["deny", "--version"]) {
        return Ok(Outcome::Skipped(
            "needs `cargo install cargo-deny --locked`".into(),
        ));
    }
    println!(
        "security advisories need a database from the network and are not checked here: run `make advisories`"
    );
    cargo(&[
        "deny",
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ])
}

/// Returns the names of the integration tests whose required features match.
fn tests_of(
    workspace: &Metadata,
    wanted: impl Fn(&dyn Fn(&str) -> bool) -> bool,
) -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for target in workspace
        .workspace_packages()
        .iter()
        .flat_map(|package| &package.targets)
    {
        let requires = |feature: &str| {
            target
                .required_features
                .iter()
                .any(|required| required == feature)
        };
        if target.kind.contains(&TargetKind::Test) && wanted(&requires) {
            tests.insert(target.name.clone());
        }
    }
    tests
}

/// Runs the tests that do not need root, except those of products if these run alone. Documentation examples need a run of
/// their own, because cargo does not combine them with other tests.
fn pure_tests(workspace: &Metadata, is_alone: bool, count: &mut Count) -> Result<Outcome> {
    let tests = run(pure(workspace), &[], &threads()?, count, |program| {
        !(is_alone && alone::products().any(|product| program.is_of(workspace, product)))
    })?;
    let mut command = test_command(&[])?;
    command.arg("--doc");
    let examples = counted(command, count)?;
    Ok(if tests == Outcome::Passed {
        examples
    } else {
        tests
    })
}

/// Returns the command that builds the tests that do not need root.
fn pure(workspace: &Metadata) -> Command {
    let mut command = cargo_command(&TESTS);
    command.args(["--lib", "--bins", "--examples"]);
    for test in tests_of(workspace, |requires| {
        ![EBPF, NETWORK, REAL_TIME, KERNEL, INTEROP, PAGE]
            .into_iter()
            .any(requires)
    }) {
        command.args(["--test", &test]);
    }
    command
}

/// Runs the pure tests of a product where the others are absent. Only root can hide these.
fn tests_alone(
    workspace: &Metadata,
    product: &str,
    root: &Result<&Root, String>,
    count: &mut Count,
) -> Result<Outcome> {
    let root = match root {
        Ok(root) => root,
        Err(reason) => return Ok(Outcome::Skipped(reason.clone())),
    };
    let this = silence::this_program()?;
    let task = [&this, alone::TASK, product];
    counted(alone::seen(workspace, product, root, &task)?, count)
}

/// The same from within: `seen` has the product, and what it may import.
pub(crate) fn test_alone(seen: &Metadata, product: &str) -> Result<()> {
    let mut build = pure(seen);
    build.arg("--offline");
    let is_of_product = |program: &Program| program.is_of(seen, product);
    match run(
        build,
        &[],
        &threads()?,
        &mut Count::default(),
        is_of_product,
    )? {
        Outcome::Passed => Ok(()),
        _ => bail!("{product} does not pass its tests without the other products"),
    }
}

/// The number of test programs that run at the same time, and of tests that each of them runs at the same time.
struct Threads {
    programs: usize,
    tests: usize,
}

fn threads() -> Result<Threads> {
    let cores = std::thread::available_parallelism()?.get();
    Ok(Threads {
        programs: PROGRAMS_AT_ONCE,
        tests: cores * TESTS_PER_CORE,
    })
}

/// Tests that share the machine's cores with emulators that must keep up.
const ONE_AT_A_TIME: Threads = Threads {
    programs: 1,
    tests: 1,
};

fn tests_as_root(
    tests: &BTreeSet<String>,
    root: &Result<Root, String>,
    missing: impl Fn(&Root) -> Option<String>,
    threads: &Threads,
    count: &mut Count,
) -> Result<Outcome> {
    if tests.is_empty() {
        println!("no test requires it");
        return Ok(Outcome::Passed);
    }
    let root = match root {
        Ok(root) => root,
        Err(reason) => return Ok(Outcome::Skipped(reason.clone())),
    };
    if let Some(reason) = missing(root) {
        return Ok(Outcome::Skipped(reason));
    }
    let mut command = cargo_command(&TESTS);
    for test in tests {
        command.args(["--test", test]);
    }
    let become_root: &[&str] = match root {
        Root::Own => &[],
        Root::Sudo => &["sudo", "-n", "-E"],
    };
    run(command, become_root, threads, count, |_| true)
}

/// Builds tests with a command of cargo, runs those that are `wanted`, prints their output and adds up their result lines.
fn run(
    cargo: Command,
    before: &[&str],
    threads: &Threads,
    count: &mut Count,
    wanted: impl Fn(&Program) -> bool,
) -> Result<Outcome> {
    let programs: Vec<_> = match programs::build(cargo) {
        Ok(programs) => programs.into_iter().filter(wanted).collect(),
        Err(error) => return Ok(passed_or_printed(Err(error))),
    };
    let way = Way {
        before,
        arguments: &[format!("--test-threads={}", threads.tests)],
        at_once: threads.programs,
    };
    let totals = Mutex::new((count, Outcome::Passed));
    programs::run(&programs, &way, |program, output, succeeded| {
        let (count, outcome) = &mut *totals.lock().expect("no thread panics");
        println!(
            "\n     Running {} of {}\n{output}",
            program.name, program.folder
        );
        output.lines().for_each(|line| count.add(line));
        if !succeeded {
            *outcome = Outcome::Failed;
        }
    })?;
    Ok(totals.into_inner().expect("no thread panics").1)
}

fn hostile_requests(workspace: &Metadata) -> Result<Outcome> {
    script_with_program(workspace, "schemathesis", &[HOSTILE_REQUESTS])
}

fn generated_client(workspace: &Metadata) -> Result<Outcome> {
    script_with_program(workspace, "client", &[])
}

/// Builds the programs that tests and scripts start. A test is built with them, so that cargo takes the same crates and
/// features as for the tests, and compiles nothing again.
fn programs() -> Result<Outcome> {
    let mut build = cargo_command(&["build", "--workspace", "--all-features", "--test", "pure"]);
    build.args(PROGRAMS.map(|name| ["--bin", name]).as_flattened());
    outcome(build)
}

/// Runs a script of `xtask/` with `hawser` that installs a package of PyPI.
fn script_with_program(workspace: &Metadata, name: &str, arguments: &[&str]) -> Result<Outcome> {
    let build = programs()?;
    if build != Outcome::Passed {
        return Ok(build);
    }
    let mut script = Command::new(workspace.workspace_root.join(format!("xtask/{name}.sh")));
    script
        .arg(workspace.target_directory.join("debug/hawser"))
        .args(arguments);
    script.env("CARGO_TARGET_DIR", &workspace.target_directory);
    let status = script
        .status()
        .with_context(|| format!("cannot run {script:?}"))?;
    Ok(match status.code() {
        Some(0) => Outcome::Passed,
        Some(CANNOT_RUN) => {
            Outcome::Skipped(format!("{name}.sh cannot install its package: see above"))
        }
        _ => Outcome::Failed,
    })
}

fn cargo(arguments: &[&str]) -> Result<Outcome> {
    outcome(cargo_command(arguments))
}

/// Returns a command of cargo whose compiler checks the lints of clippy, too, so that nothing is compiled twice for them.
fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments);
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    // Cargo sets these variables to describe this program. Some crates are built again when they differ.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    programs::seed(&mut command);
    command
}

/// Returns the command that tests the workspace. `become_root` precedes each test program.
fn test_command(become_root: &[&str]) -> Result<Command> {
    let mut command = cargo_command(&TESTS);
    command.args(runner("'cfg(all())'", become_root, &[])?);
    Ok(command)
}

/// Returns cargo's option that has this program run the test programs of a target, so that none can wait
/// for ever. `before` precedes this program, and `emulator` precedes the test program.
fn runner(target: &str, before: &[&str], emulator: &[&str]) -> Result<[String; 2]> {
    let this = silence::this_program()?;
    let words = [before, &[&this, silence::RUNNER], emulator].concat();
    Ok([
        "--config".to_owned(),
        format!("target.{target}.runner = {words:?}"),
    ])
}

fn outcome(mut command: Command) -> Result<Outcome> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    Ok(if status.success() {
        Outcome::Passed
    } else {
        Outcome::Failed
    })
}

/// Runs tests, prints their output and adds up their result lines.
fn counted(mut command: Command, count: &mut Count) -> Result<Outcome> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let output = child
        .stdout
        .take()
        .context("the output of the tests is a pipe")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        count.add(&line);
    }
    Ok(if child.wait()?.success() {
        Outcome::Passed
    } else {
        Outcome::Failed
    })
}

impl Count {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; ...`, or the name of a
    /// line such as `test name ... FAILED`. Other lines are ignored.
    fn add(&mut self, line: &str) {
        if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_string());
        }
        let Some((_, figures)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for figure in figures.split("; ") {
            let Some((number, what)) = figure.split_once(' ') else {
                continue;
            };
            let number = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut count = Count::default();
        count.add("running 4 tests");
        count.add("test loss::is_noticed ... ok");
        count.add("test loss::is_repaired ... FAILED");
        count.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        );
        count.add(
            "test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s",
        );
        assert_eq!(
            count,
            Count {
                passed: 5,
                failed: 5,
                skipped: 1,
                failures: vec!["loss::is_repaired".to_string()],
            }
        );
    }
}

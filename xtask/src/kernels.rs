//! Runs tests on the kernel that `setup.sh kernels` has unpacked, in an emulated machine.

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, Metadata};
use std::io::BufReader;
use std::process::{Command, Stdio};

/// The packages and names of the tests, and the arguments of each executable. The machine has one slow
/// processor, so tests that measure run one at a time.
const TESTS: [(&str, &str, &str); 3] = [
    ("hawser-io", "departures", ""),
    ("hawser-io", "queueing", "--test-threads=1 --nocapture"),
    ("hawser-view", "kernel_paced", "--nocapture"),
];

pub(crate) fn test(workspace: &Metadata) -> Result<()> {
    let mut script = Command::new(workspace.workspace_root.join("xtask/kernel.sh"));
    script.arg(workspace.target_directory.join("kernel"));
    for (package, test, arguments) in TESTS {
        script.arg(format!("{} {arguments}", executable(package, test)?));
    }
    let status = script
        .status()
        .with_context(|| format!("cannot run {script:?}"))?;
    if !status.success() {
        bail!("make kernels: failed");
    }
    Ok(())
}

/// Builds a test and returns the path of its executable.
fn executable(package: &str, test: &str) -> Result<String> {
    let mut build = Command::new("cargo");
    build.args(["test", "--no-run", "--locked", "--all-features"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    build.args(["--package", package, "--test", test]);
    let mut build = build.stdout(Stdio::piped()).spawn()?;
    let output = build.stdout.take().context("the output is a pipe")?;
    let mut executable = None;
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message?
            && artifact.target.name == test
        {
            executable = artifact.executable;
        }
    }
    if !build.wait()?.success() {
        bail!("cannot build the test {test} of {package}");
    }
    let executable = executable.with_context(|| format!("{package} has no test {test}"))?;
    Ok(executable.into_string())
}

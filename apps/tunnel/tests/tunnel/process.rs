//! An end of a tunnel as a process of its own: this test program started once more.

use clap::Parser;
use hawser_io::netns::Namespace;
use hawser_io::process::Process;
use std::path::Path;
use std::process::Command;

/// The command line of the tunnel that the program is to be, instead of a test.
const COMMAND_LINE: &str = "HAWSER_TUNNEL_TEST";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    tunnel: hawser_tunnel::Args,
}

/// Starts `hawser tunnel ROLE --config FILE` in the namespace.
pub(crate) fn start(namespace: &Namespace, role: &str, config: &Path) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::is_a_tunnel_when_told_to", "--nocapture"]);
    command.env(COMMAND_LINE, format!("tunnel {role} --config {}", config.display()));
    command.stdout(std::process::Stdio::null());
    Process::spawn(namespace, command).unwrap()
}

#[test]
fn is_a_tunnel_when_told_to() {
    let Ok(command_line) = std::env::var(COMMAND_LINE) else { return };
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let cli = Cli::try_parse_from(command_line.split(' ')).unwrap();
    hawser_tunnel::run(&cli.tunnel).unwrap();
}

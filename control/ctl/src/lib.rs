//! `hawser ctl`: the command line for operators of a controller.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod apply;
mod audit;
mod authority;
mod enrolment;
mod event;
mod exit;
mod export;
mod flow;
mod node;
mod outdated;
mod output;
mod path;
mod policy;
mod report;
mod resource;
mod settings;
mod tenant;
mod text;
mod token;
mod topology;
mod track;
mod tunnel;
mod version;

use anyhow::{Context, Result};
use clap::{Command, Subcommand};
use clap_complete::Shell;
use hawser_client::OperatorClient;
use hawser_model::access::Caller;
use output::Output;
use std::io::IsTerminal;
use std::time::Duration;

/// The shortest interval of `--watch`.
const MIN_WATCH: Duration = Duration::from_millis(500);

/// Query and operate a controller
///
/// The address and the credentials can be set in a configuration file: see docs/ctl.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser ctl flow describe video")]
pub struct Args {
    #[command(flatten)]
    connection: settings::ConnectionArgs,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Repeat `list`, `show` or `describe` every 2 s, or at another interval, until Ctrl-C
    #[arg(long, global = true, value_name = "TIME", value_parser = text::parse_duration, num_args = 0..=1,
        require_equals = true, default_missing_value = "2s")]
    watch: Option<Duration>,
    #[command(subcommand)]
    topic: Topic,
}

#[derive(Debug, Subcommand)]
enum Topic {
    /// Edge nodes: list, enrol, revoke and delete them
    #[command(subcommand, after_help = "Example: hawser ctl node list --tenant acme")]
    Node(node::Command),
    /// Enrolment tokens, with which nodes get their certificates
    #[command(
        subcommand,
        after_help = "Example: hawser ctl enrolment list --node edge-1"
    )]
    Enrolment(enrolment::Command),
    /// Flows: traffic from one node to another, and how it is protected
    #[command(subcommand, after_help = "Example: hawser ctl flow list --node edge-1")]
    Flow(flow::Command),
    /// Policies: the paths that flows take now
    #[command(subcommand, after_help = "Example: hawser ctl policy list --watch")]
    Policy(policy::Command),
    /// Paths, and their health
    #[command(
        subcommand,
        after_help = "Example: hawser ctl path list --node edge-1 --watch"
    )]
    Path(path::Command),
    Topology(topology::Args),
    /// Tunnel servers, and the settings of tunnel clients
    #[command(subcommand, after_help = "Example: hawser ctl tunnel list")]
    Tunnel(tunnel::Command),
    /// Tracks: who may publish and watch a broadcast
    #[command(
        subcommand,
        after_help = "Example: hawser ctl track list --tenant acme"
    )]
    Track(track::Command),
    /// The latest reports of nodes
    #[command(subcommand, after_help = "Example: hawser ctl report list")]
    Report(report::Command),
    /// Events
    #[command(subcommand, after_help = "Example: hawser ctl event list")]
    Event(event::Command),
    /// The audit log: changes and their authors
    #[command(subcommand, after_help = "Example: hawser ctl audit list")]
    Audit(audit::Command),
    /// Tenants, to which nodes and flows belong
    #[command(subcommand, after_help = "Example: hawser ctl tenant list")]
    Tenant(tenant::Command),
    /// Operators' tokens
    #[command(subcommand, after_help = "Example: hawser ctl token list")]
    Token(token::Command),
    /// Create and change tenants, settings of tunnel clients, flows and tracks as described in files
    Apply(apply::Args),
    Export(export::Args),
    /// Named controllers in the configuration file
    #[command(subcommand, after_help = "Example: hawser ctl context list")]
    Context(settings::ContextCommand),
    /// Show the authorities that the controller trusts, and which nodes trust them
    #[command(after_help = "Example: hawser ctl authority")]
    Authority,
    /// Show the versions of this program and of the controller, and the controller that leads
    #[command(after_help = "Example: hawser ctl version")]
    Version,
    /// Show the identity that the controller sees
    #[command(after_help = "Example: hawser ctl whoami")]
    Whoami,
    /// Print a completion script for a shell; docs/ctl.md says where to install it
    #[command(after_help = "Example: hawser ctl completion bash")]
    Completion {
        /// The shell
        shell: Shell,
    },
}

/// Runs the command.
///
/// # Errors
/// If the command fails. The error carries the exit code that docs/ctl.md documents for it.
pub fn run(args: &Args) -> Result<()> {
    execute(args).map_err(exit::with_code)
}

fn execute(args: &Args) -> Result<()> {
    let output = Output {
        json: args.json,
        replaces: args.watch.is_some() && !args.json && std::io::stdout().is_terminal(),
    };
    match &args.topic {
        Topic::Completion { shell } => return output.text(&completion(*shell, program())),
        Topic::Context(command) => return settings::run_context(command, &args.connection, output),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let client = args.connection.client()?;
    let runtime = runtime.context("cannot start the async runtime")?;
    match args.watch {
        Some(interval) => runtime.block_on(watch(&args.topic, &client, output, interval)),
        None => runtime.block_on(dispatch(&args.topic, &client, output)),
    }
}

/// Repeats a command that only reads. A controller that cannot be reached for some time ends nothing.
async fn watch(
    topic: &Topic,
    client: &OperatorClient,
    output: Output,
    interval: Duration,
) -> Result<()> {
    if !topic.only_reads() {
        return Err(exit::misused(
            "--watch repeats commands that only read: list, show and describe",
        ));
    }
    let mut has_worked = false;
    loop {
        match dispatch(topic, client, output).await {
            Ok(()) => has_worked = true,
            Err(error) if has_worked && exit::is_transient(&error) => {
                hawser_service::complain(&format!("hawser: {error:#}"));
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(interval.max(MIN_WATCH)).await;
    }
}

impl Topic {
    /// Returns whether the command asks for the present state and changes nothing.
    fn only_reads(&self) -> bool {
        match self {
            Topic::Node(command) => command.only_reads(),
            Topic::Enrolment(command) => matches!(command, enrolment::Command::List { .. }),
            Topic::Flow(command) => command.only_reads(),
            Topic::Policy(command) => command.only_reads(),
            Topic::Track(command) => command.only_reads(),
            Topic::Tenant(command) => command.only_reads(),
            Topic::Tunnel(command) => command.only_reads(),
            Topic::Event(command) => matches!(command, event::Command::List { .. }),
            Topic::Token(command) => matches!(command, token::Command::List),
            Topic::Path(_) | Topic::Topology(_) | Topic::Report(_) | Topic::Audit(_) => true,
            Topic::Whoami | Topic::Version | Topic::Authority => true,
            Topic::Apply(_) | Topic::Export(_) | Topic::Context(_) | Topic::Completion { .. } => {
                false
            }
        }
    }
}

async fn dispatch(topic: &Topic, client: &OperatorClient, output: Output) -> Result<()> {
    match topic {
        Topic::Node(command) => node::run(command, client, output).await,
        Topic::Enrolment(command) => enrolment::run(command, client, output).await,
        Topic::Flow(command) => flow::run(command, client, output).await,
        Topic::Policy(command) => policy::run(command, client, output).await,
        Topic::Path(command) => path::run(command, client, output).await,
        Topic::Topology(args) => topology::run(args, client, output).await,
        Topic::Tunnel(command) => tunnel::run(command, client, output).await,
        Topic::Track(command) => track::run(command, client, output).await,
        Topic::Report(command) => report::run(command, client, output).await,
        Topic::Event(command) => event::run(command, client, output).await,
        Topic::Audit(command) => audit::run(command, client, output).await,
        Topic::Tenant(command) => tenant::run(command, client, output).await,
        Topic::Token(command) => token::run(command, client, output).await,
        Topic::Apply(args) => apply::run(args, client, output).await,
        Topic::Export(args) => export::run(args, client, output).await,
        Topic::Authority => authority::run(client, output).await,
        Topic::Version => version::run(client, output).await,
        Topic::Whoami => whoami(&client.me().await?, output),
        Topic::Completion { .. } | Topic::Context(_) => unreachable!("needs no controller"),
    }
}

fn whoami(caller: &Caller, output: Output) -> Result<()> {
    let fields = match caller {
        Caller::Operator(token) => token::fields(token),
        Caller::Node {
            name,
            tenant,
            expires_unix_ms,
        } => vec![
            ("node", name.to_string()),
            ("tenant", tenant.to_string()),
            ("expires", text::date(*expires_unix_ms)),
        ],
    };
    output.one(caller, &fields)
}

/// Returns the command line that completion is for: `hawser-ctl`, or `hawser` with `hawser ctl` alone.
fn program() -> Command {
    match hawser_service::is_started_by_hawser() {
        true => Command::new("hawser").subcommand(hawser_service::command::<Args>("ctl")),
        false => hawser_service::command::<Args>("hawser-ctl"),
    }
}

/// Returns the script that completes the commands of a program in a shell.
fn completion(shell: Shell, mut program: Command) -> String {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        program().debug_assert();
    }

    #[test]
    fn every_shell_completes_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert!(completion(shell, program()).contains("whoami"), "{shell}");
        }
    }
}

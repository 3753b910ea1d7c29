//! `hawser ctl`: what an operator asks of a controller and tells it.

mod apply;
mod audit;
mod enrolment;
mod event;
mod flow;
mod node;
mod output;
mod path;
mod policy;
mod report;
mod settings;
mod tenant;
mod text;
mod token;
mod tunnel;

use anyhow::{Context, Result};
use clap::{Command, Subcommand};
use clap_complete::Shell;
use hawser_client::OperatorClient;
use hawser_control::access::Caller;
use output::Output;

/// Ask a controller, and tell it what to do
///
/// Where the controller is can be said once, in a file: see docs/ctl.md.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: settings::Place,
    /// The answer as JSON, for programs
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    topic: Topic,
}

#[derive(Debug, Subcommand)]
enum Topic {
    /// Edge nodes: who they are, and whether they may take part
    #[command(subcommand)]
    Node(node::Command),
    /// Tokens by which nodes get their certificates
    #[command(subcommand)]
    Enrolment(enrolment::Command),
    /// Traffic from node to node, and what is done for it
    #[command(subcommand)]
    Flow(flow::Command),
    /// The paths that flows take now
    #[command(subcommand)]
    Policy(policy::Command),
    /// Ends of paths, and how they are
    #[command(subcommand)]
    Path(path::Command),
    /// Servers of tunnels
    #[command(subcommand)]
    Tunnel(tunnel::Command),
    /// What nodes said last
    #[command(subcommand)]
    Report(report::Command),
    /// What happened
    #[command(subcommand)]
    Event(event::Command),
    /// Changes and their authors
    #[command(subcommand)]
    Audit(audit::Command),
    /// Whose nodes and flows are
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// Operators' tokens
    #[command(subcommand)]
    Token(token::Command),
    /// Make tenants and flows as a file says
    Apply(apply::Args),
    /// Whom the controller takes you for
    Whoami,
    /// A script that lets a shell complete commands; docs/ctl.md says where it goes
    Completion {
        /// Which shell
        shell: Shell,
    },
}

/// Does what is asked for. `program` is the whole command line that these arguments are part of, for completion.
pub fn run(args: &Args, program: Command) -> Result<()> {
    let output = Output { json: args.json };
    if let Topic::Completion { shell } = args.topic {
        return output.text(&completion(shell, program));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let client = args.place.client()?;
    runtime
        .context("cannot start")?
        .block_on(answer(&args.topic, &client, output))
}

async fn answer(topic: &Topic, client: &OperatorClient, output: Output) -> Result<()> {
    match topic {
        Topic::Node(command) => node::run(command, client, output).await,
        Topic::Enrolment(command) => enrolment::run(command, client, output).await,
        Topic::Flow(command) => flow::run(command, client, output).await,
        Topic::Policy(command) => policy::run(command, client, output).await,
        Topic::Path(command) => path::run(command, client, output).await,
        Topic::Tunnel(command) => tunnel::run(command, client, output).await,
        Topic::Report(command) => report::run(command, client, output).await,
        Topic::Event(command) => event::run(command, client, output).await,
        Topic::Audit(command) => audit::run(command, client, output).await,
        Topic::Tenant(command) => tenant::run(command, client, output).await,
        Topic::Token(command) => token::run(command, client, output).await,
        Topic::Apply(args) => apply::run(args, client, output).await,
        Topic::Whoami => whoami(&client.me().await?, output),
        Topic::Completion { .. } => unreachable!("needs no controller"),
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

fn completion(shell: Shell, mut program: Command) -> String {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;

    fn program() -> Command {
        Command::new("hawser").subcommand(Args::augment_args(Command::new("ctl")))
    }

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

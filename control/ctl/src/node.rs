use crate::outdated::unless_changed;
use crate::output::{Output, is_wanted};
use crate::text;
use crate::token::SecretFile;
use anyhow::{Context, Result};
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::access::NewEnrolment;
use hawser_model::pair::PublicKey;
use hawser_model::resource::Node;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest validity of an enrolment token: 30 days, as the controller has it.
const MAX_VALID_S: u64 = 30 * 24 * 3600;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List all nodes
    #[command(after_help = "Example: hawser ctl node list --tenant acme")]
    List {
        /// Only nodes of this tenant
        #[arg(long)]
        tenant: Option<Name>,
    },
    /// Show one node
    #[command(after_help = "Example: hawser ctl node show edge-1")]
    Show {
        /// Name of the node
        node: Name,
    },
    Enrol(Enrol),
    /// Change the description of a node
    #[command(after_help = "Example: hawser ctl node set edge-1 --description van-7")]
    Set {
        /// Name of the node
        node: Name,
        /// Description for people
        #[arg(long)]
        description: String,
    },
    /// Revoke the node's certificate and its tokens; it has to be enrolled again
    #[command(after_help = "Example: hawser ctl node revoke edge-1")]
    Revoke {
        /// Name of the node
        node: Name,
    },
    /// Make the node replace the key from which those that it shares with other nodes are derived
    #[command(after_help = "Example: hawser ctl node rekey edge-1")]
    Rekey {
        /// Name of the node
        node: Name,
    },
    /// Revoke the node's certificate and its tokens, and delete the node
    #[command(after_help = "Example: hawser ctl node delete edge-1")]
    Delete {
        /// Name of the node
        node: Name,
    },
}

/// Create a one-time token with which the node gets its certificate
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser ctl node enrol edge-1 --tenant acme --out edge-1.token")]
pub(crate) struct Enrol {
    /// Name of the node
    node: Name,
    /// Tenant that the node belongs to
    #[arg(long)]
    tenant: Name,
    /// Validity of the token, such as 15m, 24h or 7d; at most 30 days
    #[arg(long, value_name = "TIME", value_parser = validity, default_value = "24h")]
    valid: Duration,
    /// File for the token, readable only by its owner; must not exist yet [default: standard
    /// output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Parses the validity of an enrolment token.
fn validity(text: &str) -> Result<Duration, String> {
    let valid = text::parse_duration(text)?;
    match valid.as_secs() {
        1..=MAX_VALID_S => Ok(valid),
        _ => Err("a token is valid for 1 s to 30 days".to_owned()),
    }
}

impl Command {
    /// Returns whether the command changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(self, Command::List { .. } | Command::Show { .. })
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List { tenant } => {
            let mut nodes = client.nodes().all().await?;
            nodes.retain(|node| is_wanted(tenant.as_ref(), &node.tenant));
            output.list(
                &nodes,
                &["name", "tenant", "state", "last seen", "version", "paths"],
                row,
            )
        }
        Command::Show { node } => {
            let node = client.node(node).await?;
            output.one(&node, &fields(&node))
        }
        Command::Enrol(enrol) => enrol.run(client, output).await,
        Command::Set { node, description } => {
            let changed = change(client, node, description).await?;
            output.changed(&changed, &format!("node {node} changed"))
        }
        Command::Revoke { node } => {
            client.revoke_node(node).await?;
            output.done(&format!(
                "certificate of node {node} revoked; `hawser ctl node enrol {node} --tenant TENANT` enrols it again"
            ))
        }
        Command::Rekey { node } => {
            client.rekey_node(node).await?;
            output.done(&format!("node {node} replaces its key; its flows continue"))
        }
        Command::Delete { node } => {
            client.delete_node(node).await?;
            output.done(&format!("node {node} deleted"))
        }
    }
}

async fn change(client: &OperatorClient, node: &Name, description: &str) -> Result<Node> {
    let before = client.tagged_node(node).await?;
    let changed = Node {
        description: description.to_owned(),
        ..before.value.clone()
    };
    let changed = client.change_node(&before, &changed).await;
    unless_changed(changed, format_args!("node {node}"))
}

impl Enrol {
    async fn run(&self, client: &OperatorClient, output: Output) -> Result<()> {
        let node = &self.node;
        let enrolment = NewEnrolment {
            tenant: self.tenant.clone(),
            valid_s: u32::try_from(self.valid.as_secs()).context("--valid is too long")?,
        };
        let out = self.out.as_deref().map(SecretFile::create).transpose()?;
        let enrolment = client.enrol_node(node, &enrolment).await?;
        let Some(out) = out else {
            return output.changed(&enrolment, &enrolment.token);
        };
        let file = out.path();
        out.fill(&enrolment.token)?;
        let until = text::date(enrolment.expires_unix_ms);
        let stored = Stored {
            node,
            id: &enrolment.id,
            expires_unix_ms: enrolment.expires_unix_ms,
            file,
        };
        let file = file.display();
        let text = format!(
            "copy {file} to {node} and run until {until}: hawser agent --config FILE --enrol {file}; where no agent runs: hawser enrol {file} --controller URL --node DIRECTORY"
        );
        output.changed(&stored, &text)
    }
}

/// An enrolment token that is in a file.
#[derive(Serialize)]
struct Stored<'a> {
    node: &'a Name,
    id: &'a str,
    expires_unix_ms: u64,
    file: &'a Path,
}

fn row(node: &Node) -> Vec<String> {
    let numbers: Vec<_> = node
        .paths
        .iter()
        .map(|end| end.number.to_string())
        .collect();
    vec![
        node.name.to_string(),
        node.tenant.to_string(),
        state(node).to_owned(),
        text::or_none(node.seen_unix_ms.map(text::ago)),
        text::or_none(node.version.as_ref()),
        if numbers.is_empty() {
            text::none()
        } else {
            numbers.join(" ")
        },
    ]
}

fn fields(node: &Node) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("name", node.name.to_string()),
        ("tenant", node.tenant.to_string()),
        ("state", state(node).to_owned()),
        (
            "last seen",
            text::or_none(node.seen_unix_ms.map(text::date)),
        ),
        ("version", text::or_none(node.version.as_ref())),
        ("description", node.description.clone()),
    ];
    let end = |end: &hawser_model::resource::PathEnd| {
        format!("{} by {} to {}", end.number, end.uplink(), end.remote)
    };
    fields.extend(node.paths.iter().map(|path| ("path", end(path))));
    let uplinks = node.uplinks.iter();
    fields.extend(uplinks.map(|uplink| ("uplink", uplink.to_string())));
    let key = |key: &PublicKey| format!("{} {}", key.generation, key.public);
    fields.extend(node.keys.iter().map(|known| ("public key", key(known))));
    fields
}

fn state(node: &Node) -> &'static str {
    match (node.alive, node.seen_unix_ms) {
        (true, _) => "alive",
        (false, Some(_)) => "LOST",
        (false, None) => "never seen",
    }
}

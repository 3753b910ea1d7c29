use crate::apply;
use crate::outdated::unless_changed;
use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::tunnel::{Server, TunnelClient, TunnelSettings, UplinkSettings};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the tunnel servers that are alive
    #[command(after_help = "Example: hawser ctl tunnel list")]
    List,
    /// List tunnel clients, and whether they have applied their settings
    #[command(after_help = "Example: hawser ctl tunnel clients --tenant acme")]
    Clients {
        /// Only clients of this tenant
        #[arg(long)]
        tenant: Option<Name>,
        /// Only this node
        #[arg(long)]
        node: Option<Name>,
    },
    /// Show the settings of a node as a tunnel client
    #[command(after_help = "Example: hawser ctl tunnel settings car-1")]
    Settings { node: Name },
    /// Replace the settings of a node as a tunnel client
    #[command(after_help = "Example: hawser ctl tunnel set car-1 --file settings.toml")]
    Set {
        node: Name,
        /// File with the settings: search_every_s, report_every_s and [[uplink]], as in a client's file;
        /// TOML, or JSON if its name ends with .json ("-" reads standard input)
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Remove the settings of a node as a tunnel client, so that its file applies
    #[command(after_help = "Example: hawser ctl tunnel clear car-1")]
    Clear { node: Name },
}

impl Command {
    /// Returns whether the command changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(
            self,
            Command::List | Command::Clients { .. } | Command::Settings { .. }
        )
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List => {
            let servers = client.tunnel_servers().all().await?;
            output.list(&servers, &SERVER_COLUMNS, server_row)
        }
        Command::Clients { tenant, node } => {
            let mut clients = client.tunnel_clients().all().await?;
            clients.retain(|client| {
                is_wanted(tenant.as_ref(), &client.tenant) && is_wanted(node.as_ref(), &client.node)
            });
            output.list(&clients, &CLIENT_COLUMNS, client_row)
        }
        Command::Settings { node } => {
            let settings = client.tagged_tunnel_settings(node).await?.value;
            output.one(&settings, &fields(&settings))
        }
        Command::Set { node, file } => {
            let settings: TunnelSettings = apply::read(file)?;
            let tag = client.tagged_tunnel_settings(node).await?.tag;
            let replaced = client.replace_tunnel_settings(node, &settings, &tag).await;
            let changed = unless_changed(replaced, format_args!("settings of {node}"))?;
            output.changed(&changed, &format!("settings of {node} changed"))
        }
        Command::Clear { node } => {
            client.delete_tunnel_settings(node).await?;
            output.done(&format!("settings of {node} removed"))
        }
    }
}

/// Returns the settings that are given, with their keys: first those of uplinks, by interface.
fn fields(settings: &TunnelSettings) -> Vec<(&str, String)> {
    let uplinks = settings.uplink.iter();
    let uplinks = uplinks.map(|uplink| (uplink.interface.as_str(), uplink_text(uplink)));
    let intervals = [
        ("search_every_s", settings.search_every_s),
        ("report_every_s", settings.report_every_s),
    ];
    let intervals = intervals.into_iter();
    let intervals = intervals.filter_map(|(key, seconds)| Some((key, seconds?.to_string())));
    uplinks.chain(intervals).collect()
}

fn uplink_text(uplink: &UplinkSettings) -> String {
    let keys = [
        ("cost", uplink.cost.map(u64::from)),
        ("monthly_cap_mb", uplink.monthly_cap_mb),
        ("mtu_bytes", uplink.mtu_bytes.map(u64::from)),
    ];
    let keys = keys.into_iter();
    let keys: Vec<_> = keys
        .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
        .collect();
    keys.join(",")
}

const SERVER_COLUMNS: [&str; 7] = [
    "name",
    "tenant",
    "state",
    "clients",
    "max clients",
    "load",
    "addresses",
];

fn server_row(server: &Server) -> Vec<String> {
    let addresses: Vec<_> = server.addresses.iter().map(SocketAddr::to_string).collect();
    vec![
        server.name.to_string(),
        server.tenant.to_string(),
        if server.draining {
            "draining"
        } else {
            "active"
        }
        .to_owned(),
        server.clients.to_string(),
        server.max_clients.to_string(),
        format!("{:.0} %", server.load() * 100.0),
        addresses.join(" "),
    ]
}

const CLIENT_COLUMNS: [&str; 6] = ["node", "tenant", "settings", "state", "since", "reason"];

fn client_row(client: &TunnelClient) -> Vec<String> {
    let settings: Vec<_> = fields(&client.settings)
        .into_iter()
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    vec![
        client.node.to_string(),
        client.tenant.to_string(),
        match settings.is_empty() {
            true => text::none(),
            false => settings.join("; "),
        },
        client.state.name().to_owned(),
        client.since_unix_ms.map_or_else(text::none, text::ago),
        text::or_none(client.reason.as_ref()),
    ]
}

pub(crate) mod settings;

use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::tunnel::{Server, TunnelClient};
use settings::{Changes, Owner};
use std::net::SocketAddr;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the tunnel servers that are alive
    List,
    /// List tunnel clients, and whether they have applied their settings
    Clients {
        /// Only clients of this tenant
        #[arg(long)]
        tenant: Option<Name>,
        /// Only this node
        #[arg(long)]
        node: Option<Name>,
    },
    /// Show the settings of the tunnel clients of a tenant, or those of one node that take precedence
    Settings {
        #[command(flatten)]
        owner: Owner,
    },
    /// Change settings of the tunnel clients of a tenant, or of one node; keys that are not named stay
    Set {
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        changes: Changes,
    },
    /// Remove all settings of the tunnel clients of a tenant, or of one node
    Clear {
        #[command(flatten)]
        owner: Owner,
    },
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
        Command::Settings { owner } => {
            let settings = client.tagged_tunnel_settings(owner.as_ref()).await?.value;
            output.one(&settings, &settings::fields(&settings))
        }
        Command::Set { owner, changes } => {
            let changed = settings::change(client, owner, changes).await?;
            output.changed(&changed, &format!("settings of {owner} changed"))
        }
        Command::Clear { owner } => {
            client.delete_tunnel_settings(owner.as_ref()).await?;
            output.done(&format!("settings of {owner} removed"))
        }
    }
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
    let settings: Vec<_> = settings::fields(&client.settings)
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
        remark(client),
    ]
}

/// Returns why a client has refused its settings, or what of them has no effect.
fn remark(client: &TunnelClient) -> String {
    match client.unmatched.as_slice() {
        [] => text::or_none(client.reason.as_ref()),
        unmatched => format!("no uplink of its file is for {}", unmatched.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_client_without_an_uplink_for_its_settings_is_listed_with_them() {
        let client = json!({ "node": "car", "tenant": "acme", "state": "applied", "reason": null, "since_unix_ms": null,
            "settings": { "uplinks": [{ "interface": "lte*", "cost": 1 }] } });
        let row = |client: serde_json::Value| client_row(&serde_json::from_value(client).unwrap());
        assert_eq!(row(client.clone()).last(), Some(&text::none()));
        let mut unmatched = client;
        unmatched["unmatched"] = json!(["lte*"]);
        let row = row(unmatched);
        assert_eq!(row[2..4], ["lte*: cost=1", "applied"]);
        assert_eq!(row[5], "no uplink of its file is for lte*");
    }
}

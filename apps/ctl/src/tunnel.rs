use crate::output::Output;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_control::tunnel::Server;
use std::net::SocketAddr;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the tunnel servers that are alive
    List,
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    let Command::List = command;
    let servers = client.tunnel_servers().all().await?;
    output.list(
        &servers,
        &[
            "name",
            "tenant",
            "state",
            "clients",
            "max clients",
            "load",
            "addresses",
        ],
        row,
    )
}

fn row(server: &Server) -> Vec<String> {
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

use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::resource::Path;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the paths of all nodes
    #[command(after_help = "Example: hawser ctl path list --node edge-1 --watch")]
    List {
        /// Only paths of this node
        #[arg(long)]
        node: Option<Name>,
    },
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    let Command::List { node } = command;
    let mut paths = client.paths().all().await?;
    paths.retain(|path| is_wanted(node.as_ref(), &path.node));
    let header = [
        "node",
        "path",
        "interface",
        "local",
        "remote",
        "from",
        "state",
        "round trip",
        "dropped by device",
    ];
    output.list(&paths, &header, row)
}

fn row(path: &Path) -> Vec<String> {
    let health = path.health.as_ref();
    vec![
        path.node.to_string(),
        path.end.number.to_string(),
        if path.end.tunnel {
            format!("tunnel {}", path.end.interface)
        } else {
            path.end.interface.clone()
        },
        path.end.local.to_string(),
        path.end.remote.to_string(),
        if path.end.discovered {
            "uplinks"
        } else {
            "file"
        }
        .to_owned(),
        health
            .map_or(
                "not reported",
                |health| if health.up { "up" } else { "down" },
            )
            .to_owned(),
        text::or_none(
            health
                .and_then(|health| health.rtt_us)
                .map(text::milliseconds),
        ),
        text::or_none(health.map(|health| health.dropped_by_device)),
    ]
}

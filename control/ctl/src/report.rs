use crate::output::Output;
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::node::{ReceiveReport, Reported, SendReport};
use std::fmt::Write;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the latest report of each node, abridged
    #[command(after_help = "Example: hawser ctl report list")]
    List,
    /// Show the latest report of a node
    #[command(after_help = "Example: hawser ctl report show edge-1")]
    Show {
        /// Name of the node
        node: Name,
    },
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List => {
            let reports = client.reports().all().await?;
            let header = ["node", "reported", "assignment", "sends", "receives"];
            output.list(&reports, &header, row)
        }
        Command::Show { node } => {
            let reported = client.report(node).await?;
            if output.json {
                output.one(&reported, &[])
            } else {
                output.text(&describe(&reported))
            }
        }
    }
}

fn row(reported: &Reported) -> Vec<String> {
    vec![
        reported.node.to_string(),
        text::ago(reported.at_unix_ms),
        reported.report.revision.to_string(),
        reported.report.sends.len().to_string(),
        reported.report.receives.len().to_string(),
    ]
}

fn describe(reported: &Reported) -> String {
    let report = &reported.report;
    let mut text = format!(
        "{}, {}, assignment {}\n",
        reported.node,
        text::ago(reported.at_unix_ms),
        report.revision
    );
    for send in &report.sends {
        describe_send(&mut text, send);
    }
    for receive in &report.receives {
        describe_receive(&mut text, receive);
    }
    text
}

fn describe_send(text: &mut String, send: &SendReport) {
    let ratio = match send.bytes {
        0 => text::none(),
        bytes => format!("{:.2}", send.sent_bytes as f64 / bytes as f64),
    };
    let _ = writeln!(
        text,
        "\nsends {}: paths {}, epoch {}\n  {} packets, {} bytes, {ratio} bytes sent per byte",
        send.flow,
        text::paths(send.code),
        send.epoch,
        send.packets,
        send.bytes,
    );
}

fn describe_receive(text: &mut String, receive: &ReceiveReport) {
    let _ = writeln!(
        text,
        "\nreceives {}: {} packets passed on",
        receive.flow, receive.packets
    );
    for path in &receive.paths {
        let _ = writeln!(
            text,
            "  path {}: {} arrived, {} first, {} the only copy, {} missing",
            path.number, path.arrivals, path.first, path.only_copy, path.missing
        );
    }
}

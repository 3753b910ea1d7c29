use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::{Backoff, Error, EventStream, OperatorClient};
use hawser_control::Name;
use hawser_control::resource::Event;
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// What happened, the oldest first
    List {
        #[command(flatten)]
        part: Part,
        #[command(flatten)]
        filter: Filter,
    },
    /// What happens, as it happens; Ctrl-C ends it
    Follow {
        #[command(flatten)]
        filter: Filter,
    },
}

/// Which part of a list in order of time.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Only what came after the entry of this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Filter {
    /// About this node only
    #[arg(long)]
    node: Option<Name>,
    /// About this flow only
    #[arg(long)]
    flow: Option<Name>,
    /// Of this kind only
    #[arg(long)]
    kind: Option<String>,
}

impl Filter {
    fn takes(&self, event: &Event) -> bool {
        let is_about =
            |wanted: &Option<Name>, found: &Option<Name>| wanted.is_none() || wanted == found;
        is_about(&self.node, &event.node)
            && is_about(&self.flow, &event.flow)
            && is_wanted(self.kind.as_deref(), &event.kind)
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List { part, filter } => {
            let mut events = client.events(part.after).all().await?;
            events.retain(|event| filter.takes(event));
            output.list(
                &events,
                &["number", "at", "kind", "about", "message"],
                |event| {
                    vec![
                        event.number.to_string(),
                        text::date(event.at_unix_ms),
                        event.kind.clone(),
                        about(event),
                        event.message.clone(),
                    ]
                },
            )
        }
        Command::Follow { filter } => follow(client, filter, output).await,
    }
}

/// Goes on when the connection is lost, with what happened since the last event.
async fn follow(client: &OperatorClient, filter: &Filter, output: Output) -> Result<()> {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));
    // Waiting for a controller that was never there would hide that something is wrong.
    let mut stream = client.follow_events(None).await?;
    let mut last = None;
    loop {
        let error = loop {
            match stream.next().await {
                Ok(Some(event)) => {
                    backoff.reset();
                    last = Some(event.number);
                    if filter.takes(&event) {
                        output.next(&event, &line(&event))?;
                    }
                }
                Ok(None) => break Error::Ended("connect again".to_owned()),
                Err(error) => break error,
            }
        };
        stream = again(client, last, error, &mut backoff).await?;
    }
}

/// Another connection after this error, if it is one that passes.
async fn again(
    client: &OperatorClient,
    last: Option<u64>,
    mut error: Error,
    backoff: &mut Backoff,
) -> Result<EventStream> {
    while error.is_passing() {
        eprintln!("hawser: {error}; trying again");
        backoff.pause().await;
        match client.follow_events(last).await {
            Ok(stream) => return Ok(stream),
            Err(next) => error = next,
        }
    }
    Err(error.into())
}

fn line(event: &Event) -> String {
    format!(
        "{}  {}  {}  {}",
        text::date(event.at_unix_ms),
        event.kind,
        about(event),
        event.message
    )
}

fn about(event: &Event) -> String {
    match (&event.node, &event.flow) {
        (Some(node), Some(flow)) => format!("{node} {flow}"),
        (Some(name), None) | (None, Some(name)) => name.to_string(),
        (None, None) => text::or_none(event.tenant.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_takes_what_it_names() {
        let event: Event = serde_json::from_str(
            r#"{ "number": 1, "at_unix_ms": 0, "tenant": "acme", "node": "edge-1", "flow": null,
                 "kind": "node_alive", "message": "" }"#,
        )
        .unwrap();
        let filter = |node: Option<&str>, kind: Option<&str>| Filter {
            node: node.map(|node| node.parse().unwrap()),
            flow: None,
            kind: kind.map(str::to_owned),
        };
        assert!(filter(None, None).takes(&event));
        assert!(filter(Some("edge-1"), Some("node_alive")).takes(&event));
        assert!(!filter(Some("edge-2"), None).takes(&event));
        assert!(!filter(None, Some("node_lost")).takes(&event));
    }
}

use crate::output::Output;
use crate::text;
use anyhow::Result;
use hawser_client::{Backoff, OperatorClient};
use hawser_control::Name;
use hawser_control::resource::Event;
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// What happened, the oldest first
    List {
        /// Only what came after the event of this number
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        after: u64,
        #[command(flatten)]
        filter: Filter,
    },
    /// What happens, as it happens; Ctrl-C ends it
    Follow {
        #[command(flatten)]
        filter: Filter,
    },
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
        self.node.as_ref().is_none_or(|node| event.node.as_ref() == Some(node))
            && self.flow.as_ref().is_none_or(|flow| event.flow.as_ref() == Some(flow))
            && self.kind.as_ref().is_none_or(|kind| event.kind == *kind)
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List { after, filter } => {
            let mut events = client.events(*after).all().await?;
            events.retain(|event| filter.takes(event));
            output.list(&events, &["number", "at", "kind", "about", "message"], |event| {
                vec![
                    event.number.to_string(),
                    text::date(event.at_unix_ms),
                    event.kind.clone(),
                    about(event),
                    event.message.clone(),
                ]
            })
        }
        Command::Follow { filter } => follow(client, filter, output).await,
    }
}

/// Goes on when the connection is lost, with what was missed in between.
async fn follow(client: &OperatorClient, filter: &Filter, output: Output) -> Result<()> {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));
    let mut last = None;
    loop {
        let failed = match session(client, filter, output, &mut last, &mut backoff).await? {
            Some(error) => error.to_string(),
            None => "the controller ended the stream".to_owned(),
        };
        eprintln!("hawser: {failed}; trying again");
        backoff.pause().await;
    }
}

/// One connection. Returns the error for which another one is worth trying, or none when the controller ended it.
async fn session(
    client: &OperatorClient,
    filter: &Filter,
    output: Output,
    last: &mut Option<u64>,
    backoff: &mut Backoff,
) -> Result<Option<hawser_client::Error>> {
    let mut stream = match client.follow_events().await {
        Ok(stream) => stream,
        // Before the first event, waiting would hide that something is wrong.
        Err(error) if error.is_passing() && last.is_some() => return Ok(Some(error)),
        Err(error) => return Err(error.into()),
    };
    if let Some(number) = *last {
        for event in client.events(number).all().await? {
            show(&event, filter, output, last)?;
        }
    }
    loop {
        match stream.next().await {
            Ok(Some(event)) => {
                backoff.reset();
                show(&event, filter, output, last)?;
            }
            Ok(None) => return Ok(None),
            Err(error) if error.is_passing() => return Ok(Some(error)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Shows an event once.
fn show(event: &Event, filter: &Filter, output: Output, last: &mut Option<u64>) -> Result<()> {
    if last.is_some_and(|last| event.number <= last) {
        return Ok(());
    }
    *last = Some(event.number);
    if !filter.takes(event) {
        return Ok(());
    }
    let line =
        format!("{}  {}  {}  {}", text::date(event.at_unix_ms), event.kind, about(event), event.message);
    output.next(event, &line)
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

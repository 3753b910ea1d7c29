use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::{Backoff, Error, EventStream, OperatorClient};
use hawser_io::clock;
use hawser_model::Name;
use hawser_model::resource::Event;
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List events, oldest first
    #[command(after_help = "Example: hawser ctl event list")]
    List {
        #[command(flatten)]
        list: ListArgs,
        #[command(flatten)]
        filter: Filter,
    },
    /// Print events as they happen, until Ctrl-C
    #[command(after_help = "Example: hawser ctl event follow")]
    Follow {
        #[command(flatten)]
        filter: Filter,
    },
}

/// The part of a chronological list to show.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only entries after the one with this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: u64,
    /// Only entries of this last time, such as 90s, 10m, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration)]
    since: Option<Duration>,
    /// Only this number of latest entries, of those that the other options leave
    #[arg(long, value_name = "NUMBER")]
    tail: Option<usize>,
}

impl ListArgs {
    /// Removes the entries that are not to be shown, from a list with the oldest first.
    pub(crate) fn cut<T>(&self, entries: &mut Vec<T>, at_unix_ms: impl Fn(&T) -> u64) {
        self.cut_at(clock::unix_ms(), entries, at_unix_ms);
    }

    fn cut_at<T>(&self, now_unix_ms: u64, entries: &mut Vec<T>, at_unix_ms: impl Fn(&T) -> u64) {
        if let Some(since) = self.since {
            let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            let from = now_unix_ms.saturating_sub(since_ms);
            entries.retain(|entry| at_unix_ms(entry) >= from);
        }
        if let Some(tail) = self.tail {
            entries.drain(..entries.len().saturating_sub(tail));
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Filter {
    /// Only events about this node
    #[arg(long)]
    node: Option<Name>,
    /// Only events about this flow
    #[arg(long)]
    flow: Option<Name>,
    /// Only events of this kind, such as node_lost
    #[arg(long)]
    kind: Option<String>,
}

/// The kind of the event that stands for those that the controller cannot show any more.
const MISSED: &str = "events_missed";

impl Filter {
    /// Returns whether to show an event. A gap is shown always: it may hide an event that is wanted.
    fn matches(&self, event: &Event) -> bool {
        if event.kind == MISSED {
            return true;
        }
        let is_about =
            |wanted: &Option<Name>, found: &Option<Name>| wanted.is_none() || wanted == found;
        is_about(&self.node, &event.node)
            && is_about(&self.flow, &event.flow)
            && is_wanted(self.kind.as_deref(), &event.kind)
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List { list, filter } => {
            let mut events = client.events(list.after).all().await?;
            events.retain(|event| filter.matches(event));
            list.cut(&mut events, |event| event.at_unix_ms);
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

/// Prints events as they happen. When the connection is lost, reconnects and continues where the stream
/// was, also if there was no event yet.
async fn follow(client: &OperatorClient, filter: &Filter, output: Output) -> Result<()> {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));
    // The first connection is not retried: retrying would hide a wrong address or credentials.
    let mut stream = client.follow_events(None).await?;
    let mut last = None;
    loop {
        let error = loop {
            match stream.next().await {
                Ok(Some(event)) => {
                    backoff.reset();
                    if filter.matches(&event) {
                        output.next(&event, &line(&event))?;
                    }
                }
                Ok(None) => break Error::Ended("reconnect".into()),
                Err(error) => break error,
            }
        };
        last = stream.position().or(last);
        if last.is_none() {
            hawser_service::complain(
                "hawser: events that happen until the connection is back are not shown",
            );
        }
        stream = reconnect(client, last, error, &mut backoff).await?;
    }
}

/// Reconnects after an error that is temporary, and returns other errors.
async fn reconnect(
    client: &OperatorClient,
    last: Option<u64>,
    mut error: Error,
    backoff: &mut Backoff,
) -> Result<EventStream> {
    while error.is_transient() {
        hawser_service::complain(&format!("hawser: {error}; reconnecting"));
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
    fn a_list_is_cut_by_time_and_number() {
        let cut = |since, tail| {
            let list = ListArgs {
                after: 0,
                since,
                tail,
            };
            let mut entries = vec![1_000, 2_000, 3_000, 4_000];
            list.cut_at(5_000, &mut entries, |at| *at);
            entries
        };
        assert_eq!(cut(Some(Duration::from_secs(2)), None), [3_000, 4_000]);
        assert_eq!(cut(Some(Duration::from_secs(3)), Some(1)), [4_000]);
        assert_eq!(cut(Some(Duration::MAX), Some(9)).len(), 4);
        assert_eq!(cut(None, Some(0)), [0; 0]);
    }

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
        assert!(filter(None, None).matches(&event));
        assert!(filter(Some("edge-1"), Some("node_alive")).matches(&event));
        assert!(!filter(Some("edge-2"), None).matches(&event));
        assert!(!filter(None, Some("node_lost")).matches(&event));
        let gap = Event {
            kind: MISSED.to_owned(),
            node: None,
            ..event
        };
        assert!(filter(Some("edge-1"), Some("node_lost")).matches(&gap));
    }
}

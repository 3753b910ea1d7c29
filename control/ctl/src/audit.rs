use crate::event::ListArgs;
use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::audit::{Actor, AuditEntry, Role};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List changes and their authors, oldest first
    #[command(after_help = "Example: hawser ctl audit list")]
    List {
        #[command(flatten)]
        list: ListArgs,
        #[command(flatten)]
        filter: Filter,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Filter {
    /// Only changes by this token or node
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only changes of this kind of resource, such as flow
    #[arg(long)]
    kind: Option<String>,
    /// Only changes of the resource with this name; for a node also those of its enrolment tokens
    #[arg(long)]
    name: Option<String>,
}

impl Filter {
    fn matches(&self, entry: &AuditEntry) -> bool {
        is_wanted(self.actor.as_deref(), &entry.actor.name)
            && is_wanted(self.kind.as_deref(), &entry.kind)
            && [&*entry.name, entry.owner()]
                .iter()
                .any(|name| is_wanted(self.name.as_deref(), name))
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    let Command::List { list, filter } = command;
    let mut entries = client.audit(list.after).all().await?;
    entries.retain(|entry| filter.matches(entry));
    list.cut(&mut entries, |entry| entry.at_unix_ms);
    let header = [
        "number", "at", "by", "from", "request", "change", "before", "after",
    ];
    output.list(&entries, &header, row)
}

fn row(entry: &AuditEntry) -> Vec<String> {
    vec![
        entry.number.to_string(),
        text::date(entry.at_unix_ms),
        by(&entry.actor),
        text::or_none(entry.address),
        text::or_none(entry.request.as_ref()),
        format!("{} {} {}", entry.kind, entry.name, entry.action),
        text::or_none(entry.before),
        text::or_none(entry.after),
    ]
}

fn by(actor: &Actor) -> String {
    let role = match actor.role {
        Role::Operator => "token",
        Role::Node => "node",
        Role::Controller => "controller",
    };
    format!("{role} {}", actor.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_takes_what_it_names() {
        let entry: AuditEntry = serde_json::from_str(
            r#"{ "number": 1, "at_unix_ms": 0, "actor": { "role": "operator", "name": "admin" }, "address": null,
                 "request": null, "tenant": null, "kind": "flow", "name": "stage", "action": "changed",
                 "before": 1, "after": 2 }"#,
        )
        .unwrap();
        let some = |text: &str| Some(text.to_owned());
        assert!(
            Filter {
                actor: None,
                kind: None,
                name: None
            }
            .matches(&entry)
        );
        assert!(
            Filter {
                actor: some("admin"),
                kind: some("flow"),
                name: some("stage")
            }
            .matches(&entry)
        );
        assert!(
            !Filter {
                actor: some("eyes"),
                kind: None,
                name: None
            }
            .matches(&entry)
        );
        assert!(
            !Filter {
                actor: None,
                kind: None,
                name: some("other")
            }
            .matches(&entry)
        );
        let named = |name: &str| Filter {
            actor: None,
            kind: None,
            name: some(name),
        };
        let token = AuditEntry {
            kind: "enrolment".to_owned(),
            name: "edge-1/0f".to_owned(),
            ..entry.clone()
        };
        assert!(
            named("edge-1").matches(&token)
                && named("edge-1/0f").matches(&token)
                && !named("edge").matches(&token)
        );
        assert_eq!(
            row(&entry)[2..6],
            ["token admin", "-", "-", "flow stage changed"]
        );
    }
}

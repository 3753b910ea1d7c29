use crate::output::Output;
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::access::TrustedAuthority;
use hawser_model::resource::Node;
use serde::Serialize;

/// The greatest number of nodes that are named in a table.
const MAX_NAMED: usize = 8;

/// An authority, and the nodes by whether they trust it.
#[derive(Serialize)]
struct Trust {
    #[serde(flatten)]
    authority: TrustedAuthority,
    trusted_by: Vec<Name>,
    not_trusted_by: Vec<Name>,
    /// Nodes that have not said which authorities they trust.
    unknown: Vec<Name>,
}

impl Trust {
    fn of(authority: TrustedAuthority, nodes: &[Node]) -> Trust {
        let names = |is_wanted: &dyn Fn(&Node) -> bool| {
            let wanted = nodes.iter().filter(|node| is_wanted(node));
            wanted.map(|node| node.name.clone()).collect()
        };
        let trusts = |node: &Node| node.authorities.contains(&authority.sha256);
        Trust {
            trusted_by: names(&trusts),
            not_trusted_by: names(&|node| !node.authorities.is_empty() && !trusts(node)),
            unknown: names(&|node| node.authorities.is_empty()),
            authority,
        }
    }
}

pub(crate) async fn run(client: &OperatorClient, output: Output) -> Result<()> {
    let nodes = client.nodes().all().await?;
    let authorities = client.authorities().await?.authorities.into_iter();
    let trusts: Vec<Trust> = authorities
        .map(|authority| Trust::of(authority, &nodes))
        .collect();
    output.list(
        &trusts,
        &[
            "authority",
            "issues",
            "expires",
            "trusted by",
            "not trusted by",
            "unknown",
        ],
        row,
    )
}

fn row(trust: &Trust) -> Vec<String> {
    let authority = &trust.authority;
    vec![
        authority.sha256.get(..16).unwrap_or_default().to_owned(),
        if authority.issues { "yes" } else { "no" }.to_owned(),
        text::date(authority.expires_unix_ms),
        format!("{} nodes", trust.trusted_by.len()),
        named(&trust.not_trusted_by),
        named(&trust.unknown),
    ]
}

/// Returns the first names, and the number of the others.
fn named(nodes: &[Name]) -> String {
    let first: Vec<_> = nodes.iter().take(MAX_NAMED).map(Name::as_str).collect();
    match nodes.len().checked_sub(MAX_NAMED) {
        _ if nodes.is_empty() => text::none(),
        None | Some(0) => first.join(" "),
        Some(more) => format!("{} and {more} more", first.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, authorities: &[&str]) -> Node {
        Node {
            name: name.parse().unwrap(),
            tenant: "acme".parse().unwrap(),
            description: String::new(),
            version: None,
            alive: true,
            seen_unix_ms: None,
            paths: vec![],
            uplinks: Vec::new(),
            keys: vec![],
            authorities: authorities
                .iter()
                .map(|digest| (*digest).to_owned())
                .collect(),
        }
    }

    #[test]
    fn nodes_are_told_apart_by_what_they_have_said() {
        let next = TrustedAuthority {
            sha256: "0b".repeat(32),
            issues: false,
            expires_unix_ms: 0,
        };
        let (old, new) = ("0a".repeat(32), "0b".repeat(32));
        let nodes = [
            node("both", &[&old, &new]),
            node("one", &[&old]),
            node("silent", &[]),
        ];
        let row = row(&Trust::of(next, &nodes));
        assert_eq!(row[0], "0b0b0b0b0b0b0b0b");
        assert_eq!(row[3..], ["1 nodes", "one", "silent"]);
    }

    #[test]
    fn long_lists_are_cut() {
        let names = |count| -> Vec<Name> {
            (0..count)
                .map(|n| format!("n{n}").parse().unwrap())
                .collect()
        };
        assert_eq!(named(&names(2)), "n0 n1");
        assert!(named(&names(MAX_NAMED + 3)).ends_with("n7 and 3 more"));
    }
}

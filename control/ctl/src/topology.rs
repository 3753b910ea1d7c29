use crate::output::Output;
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::topology::{
    Topology, TopologyCandidate, TopologyEnd, TopologyNode, TopologyPath, TopologyUplink,
};
use std::fmt::Write;

/// Show the nodes and the paths between them, with their health and the flows that take them
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser ctl topology --watch")]
pub(crate) struct Args {
    /// Only nodes of this tenant
    #[arg(long)]
    tenant: Option<Name>,
    /// Only this node, and those that it shares a path with
    #[arg(long)]
    node: Option<Name>,
    /// Print a graph for Graphviz, as in `hawser ctl topology --dot | dot -Tsvg`
    #[arg(long, conflicts_with = "json")]
    dot: bool,
}

pub(crate) async fn run(args: &Args, client: &OperatorClient, output: Output) -> Result<()> {
    let topology = client
        .topology(args.tenant.as_ref(), args.node.as_ref())
        .await?;
    if args.dot {
        return output.text(&dot(&topology));
    }
    if output.json {
        return output.one(&topology, &[]);
    }
    let header = [
        "path",
        "from",
        "interface",
        "to",
        "interface",
        "state",
        "round trip",
        "flows",
    ];
    let mut text = crate::output::table(&header, topology.paths.iter().map(row));
    for node in &topology.nodes {
        text.push_str(&remark(node));
    }
    if !topology.candidates.is_empty() {
        let header = ["uplink", "", "not a path to", "", "because"];
        let candidates = topology.candidates.iter().map(candidate_row);
        text.push('\n');
        text.push_str(&crate::output::table(&header, candidates));
    }
    output.text(&text)
}

fn row(path: &TopologyPath) -> Vec<String> {
    let mut row = vec![path.number.to_string()];
    for end in &path.ends {
        row.push(end.node.to_string());
        row.push(end.end.uplink().to_string());
    }
    row.extend([
        state(path).to_owned(),
        text::or_none(round_trip_us(path).map(text::milliseconds)),
        match path.flows.is_empty() {
            true => text::none(),
            false => names(&path.flows),
        },
    ]);
    row
}

fn candidate_row(candidate: &TopologyCandidate) -> Vec<String> {
    let ends = candidate.ends.iter();
    let ends =
        ends.flat_map(|TopologyUplink { node, uplink }| [node.to_string(), uplink.to_string()]);
    ends.chain([candidate.reason.clone()]).collect()
}

/// Returns what is to be said about a node; nothing if it is alive and all its paths are listed.
fn remark(node: &TopologyNode) -> String {
    let mut text = String::new();
    if !node.alive {
        let _ = writeln!(text, "{} is not alive", node.name);
    }
    if !node.unmatched.is_empty() {
        let numbers: Vec<String> = node.unmatched.iter().map(u8::to_string).collect();
        let _ = writeln!(
            text,
            "{}: no node has registered the other end of path {}",
            node.name,
            numbers.join(", ")
        );
    }
    text
}

fn state(path: &TopologyPath) -> &'static str {
    let all = |holds: fn(&TopologyEnd) -> bool| path.ends.iter().all(holds);
    let is_up = |end: &TopologyEnd| end.health.as_ref().is_some_and(|health| health.up);
    if path.ends.iter().all(|end| end.health.is_none()) {
        "not reported"
    } else if !all(is_up) {
        "DOWN"
    } else if round_trip_us(path).is_none() {
        "NO ANSWER"
    } else {
        "up"
    }
}

/// Returns the round-trip time that one of the nodes has measured.
fn round_trip_us(path: &TopologyPath) -> Option<u32> {
    path.ends.iter().find_map(|end| end.health.as_ref()?.rtt_us)
}

fn names(flows: &[Name]) -> String {
    let names: Vec<&str> = flows.iter().map(Name::as_str).collect();
    names.join(" ")
}

/// Formats the topology in the language of Graphviz. Names need no escapes.
fn dot(topology: &Topology) -> String {
    let mut text = String::from("graph hawser {\n");
    for node in &topology.nodes {
        let style = if node.alive { "solid" } else { "dashed" };
        let _ = writeln!(text, "  \"{}\" [shape=box, style={style}];", node.name);
    }
    for path in &topology.paths {
        let [from, to] = path.ends.as_slice() else {
            continue;
        };
        let state = state(path);
        let style = if state == "up" { "solid" } else { "dashed" };
        let round_trip = text::or_none(round_trip_us(path).map(text::milliseconds));
        let _ = writeln!(
            text,
            "  \"{}\" -- \"{}\" [style={style}, label=\"path {}: {state}, {round_trip}\\n{}\"];",
            from.node,
            to.node,
            path.number,
            names(&path.flows)
        );
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        serde_json::from_str(
            r#"{ "nodes": [
                { "name": "edge-1", "tenant": "acme", "alive": true, "unmatched": [] },
                { "name": "edge-2", "tenant": "acme", "alive": false, "unmatched": [3] } ],
              "paths": [ { "number": 1, "addresses_match": true, "flows": ["stage"], "ends": [
                { "node": "edge-1", "end": { "number": 1, "interface": "wan1", "local": "192.0.2.1", "remote": "192.0.2.2" },
                  "health": { "number": 1, "up": true, "rtt_us": 30500, "dropped_by_device": 0 } },
                { "node": "edge-2", "end": { "number": 1, "interface": "wan0", "local": "192.0.2.2", "remote": "192.0.2.1" },
                  "health": { "number": 1, "up": true, "rtt_us": null, "dropped_by_device": 0 } } ] } ] }"#,
        )
        .unwrap()
    }

    #[test]
    fn a_path_is_a_row_with_both_ends() {
        let topology = topology();
        let wanted = [
            "1",
            "edge-1",
            "wan1 192.0.2.1",
            "edge-2",
            "wan0 192.0.2.2",
            "up",
            "30.5 ms",
            "stage",
        ];
        assert_eq!(row(&topology.paths[0]), wanted);
        let mut down = topology.paths[0].clone();
        down.ends[1].health.as_mut().unwrap().up = false;
        assert_eq!(state(&down), "DOWN");
        down.ends.iter_mut().for_each(|end| end.health = None);
        assert_eq!(state(&down), "not reported");
    }

    #[test]
    fn a_candidate_is_a_row_with_the_reason_that_it_is_no_path() {
        let candidate = r#"{ "ends": [ { "node": "edge-1", "interface": "wan1", "address": "192.0.2.1" },
            { "node": "edge-2", "interface": "wan0", "address": "192.0.2.2" } ], "reason": "no answer at edge-1" }"#;
        let row = candidate_row(&serde_json::from_str(candidate).unwrap());
        let ends = ["edge-1", "wan1 192.0.2.1", "edge-2", "wan0 192.0.2.2"];
        assert_eq!(row[..4], ends);
        assert_eq!(row[4], "no answer at edge-1");
    }

    #[test]
    fn what_is_missing_is_said_of_its_node() {
        let topology = topology();
        assert_eq!(remark(&topology.nodes[0]), "");
        let remark = remark(&topology.nodes[1]);
        assert!(
            remark.contains("edge-2 is not alive") && remark.contains("other end of path 3"),
            "{remark}"
        );
    }

    #[test]
    fn a_graph_has_an_edge_for_every_path() {
        let graph = dot(&topology());
        assert!(
            graph.starts_with("graph hawser {") && graph.ends_with("}\n"),
            "{graph}"
        );
        let edge = r#""edge-1" -- "edge-2" [style=solid, label="path 1: up, 30.5 ms\nstage"];"#;
        assert!(graph.contains(edge), "{graph}");
        assert!(
            graph.contains(r#""edge-2" [shape=box, style=dashed]"#),
            "{graph}"
        );
    }
}

use super::{paths, table};
use crate::status::{
    CandidateStatus, ControllerStatus, JudgedStatus, PeerStatus, PolicyStatus, WatchStatus,
};
use hawser_model::pair::PublicKey;
use std::fmt::Write;

/// Describes the connection to the controller, the policies and the judgements.
pub(super) fn describe(status: &ControllerStatus, now_ms: u64) -> String {
    let mut text = connection(status, now_ms);
    let _ = writeln!(text, "; assignment {}", status.revision);
    for (flow, reason) in &status.not_applied {
        let _ = writeln!(text, "flow {flow} is not as assigned: {reason}");
    }
    if status.observations_dropped > 0 {
        let _ = writeln!(
            text,
            "{} observations were dropped",
            status.observations_dropped
        );
    }
    text += &keys(status);
    text += &paths_table(status);
    text += &candidates(status);
    text += &policies(status);
    text += &judged(status);
    text += &watched(status);
    text += &signals(status);
    text
}

fn connection(status: &ControllerStatus, now_ms: u64) -> String {
    let since_s = now_ms.saturating_sub(status.since_unix_ms) / 1000;
    let urls = status.urls.join(", ");
    match (status.state.as_str(), &status.reason) {
        ("connected", _) => format!("connected to the controller {urls} for {since_s} s"),
        ("refused", Some(reason)) => format!("THE CONTROLLER REFUSES THIS NODE: {reason}"),
        (state, Some(reason)) => format!("controller {state} for {since_s} s: {reason}"),
        (state, None) => format!("controller {state}: {urls}"),
    }
}

fn keys(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 4] = [
        "peer",
        "made by",
        "own public key",
        "public key of the peer",
    ];
    let row = |(peer, keys): (&String, &PeerStatus)| {
        let of = |keys: &[PublicKey]| {
            let beginnings = keys
                .iter()
                .map(|key| key.public.get(..16).unwrap_or_default());
            beginnings.collect::<Vec<_>>().join(", ")
        };
        vec![
            peer.clone(),
            keys.source.clone(),
            of(&keys.own),
            of(&keys.peer),
        ]
    };
    table("keys", &COLUMNS, status.peers.iter().map(row).collect())
}

fn paths_table(status: &ControllerStatus) -> String {
    let row = |(number, path): (&u8, &crate::status::PathStatus)| {
        let state = if path.up { "up" } else { "DOWN" }.to_owned();
        let round_trip = path.rtt_us.map_or_else(
            || "no answer".to_owned(),
            |us| format!("{:.3} ms", f64::from(us) / 1e3),
        );
        vec![number.to_string(), state, round_trip]
    };
    table(
        "paths",
        &["path", "state", "round trip"],
        status.paths.iter().map(row).collect(),
    )
}

fn candidates(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 6] = ["peer", "interface", "local", "remote", "state", "path"];
    let row = |CandidateStatus { way, answers, path }: &CandidateStatus| {
        vec![
            way.peer.to_string(),
            way.interface.clone(),
            way.ends.local.to_string(),
            way.ends.remote.to_string(),
            if *answers { "answers" } else { "no answer" }.to_owned(),
            path.map_or_else(String::new, |path| path.to_string()),
        ]
    };
    table(
        "candidates",
        &COLUMNS,
        status.candidates.iter().map(row).collect(),
    )
}

fn policies(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 7] = ["flow", "number", "", "epoch", "paths", "probed", "reason"];
    let sent = status.send.iter();
    let sent = sent.map(|(number, policy)| policy_row(*number, "sent", policy));
    let received = status.receive.iter();
    let received = received.map(|(number, judged)| policy_row(*number, "received", &judged.policy));
    table("policies", &COLUMNS, sent.chain(received).collect())
}

fn policy_row(number: u16, direction: &str, policy: &PolicyStatus) -> Vec<String> {
    let probed = match policy.probe_every {
        0 => "-".to_owned(),
        every => format!("{} 1 in {every}", paths(policy.probes)),
    };
    vec![
        policy.flow.to_string(),
        number.to_string(),
        direction.to_owned(),
        policy.epoch.to_string(),
        paths(policy.code),
        probed,
        policy.reason.clone(),
    ]
}

fn judged(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 7] = [
        "flow",
        "mode",
        "packets",
        "path",
        "sent",
        "in time",
        "only this one",
    ];
    let mut rows = Vec::new();
    for judged in status.receive.values() {
        let flow = judged.policy.flow.to_string();
        rows.push(vec![flow, judged.mode.clone(), judged.packets.to_string()]);
        for (path, part) in judged.window.iter().flat_map(|window| &window.paths) {
            let mut row = vec![String::new(); 3];
            row.push(path.to_string());
            row.extend([part.sent, part.rewards, part.only].map(|count| count.to_string()));
            rows.push(row);
        }
    }
    table("judged: the last hundred packets by path", &COLUMNS, rows)
}

fn watched(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 6] = [
        "flow",
        "requests",
        "sent again",
        "late",
        "degraded",
        "packets a request",
    ];
    let row = |judged: &JudgedStatus| {
        let flow = judged.policy.flow.to_string();
        judged.watch.as_ref().map(|watch| watched_row(flow, watch))
    };
    let rows = status.receive.values().filter_map(row).collect();
    table("watched requests", &COLUMNS, rows)
}

fn watched_row(flow: String, watch: &WatchStatus) -> Vec<String> {
    let counts = [
        watch.requests,
        watch.retransmissions,
        watch.late,
        watch.degraded,
    ];
    let mut row = vec![flow];
    row.extend(counts.map(|count| count.to_string()));
    row.push(
        watch
            .packets_per_request
            .map_or_else(|| "-".to_owned(), |packets| packets.to_string()),
    );
    row
}

fn signals(status: &ControllerStatus) -> String {
    if status.signals.is_empty() {
        return String::new();
    }
    let counts: Vec<_> = status
        .signals
        .iter()
        .map(|(outcome, count)| format!("{count} {outcome}"))
        .collect();
    format!("\nin-band signals: {}\n", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{PathStatus, PathWindowStatus, WindowStatus};
    use std::collections::BTreeMap;

    fn policy(code: u8) -> PolicyStatus {
        let reason = "judged".to_owned();
        PolicyStatus {
            flow: "stage".parse().unwrap(),
            epoch: 4,
            code,
            probes: 0b100,
            probe_every: 64,
            reason,
        }
    }

    fn status() -> ControllerStatus {
        let paths = BTreeMap::from([(
            1,
            PathWindowStatus {
                sent: 100,
                rewards: 97,
                only: 12,
            },
        )]);
        let watch = WatchStatus {
            requests: 300,
            closed_connections: 0,
            retransmissions: 2,
            records_lost: 0,
            late: 5,
            degraded: 1,
            packets_per_request: Some(124),
        };
        let judged = JudgedStatus {
            policy: policy(0b11),
            mode: "evidence".to_owned(),
            packets: 5_000,
            window: Some(WindowStatus {
                packets: 100,
                lost: 0,
                paths,
            }),
            watch: Some(watch),
        };
        let key = |digits: &str| PublicKey {
            generation: 7,
            public: digits.repeat(32),
        };
        let keys = PeerStatus {
            source: "nodes".to_owned(),
            own: vec![key("5e")],
            peer: vec![key("0a"), key("0b")],
            sends: None,
            obstacle: None,
        };
        ControllerStatus {
            urls: vec!["https://192.0.2.1:14750".to_owned()],
            state: "connected".to_owned(),
            since_unix_ms: 88_000,
            reason: None,
            revision: 7,
            observations_dropped: 0,
            not_applied: BTreeMap::new(),
            peers: BTreeMap::from([("edge-2".to_owned(), keys)]),
            paths: BTreeMap::from([
                (
                    1,
                    PathStatus {
                        up: true,
                        rtt_us: Some(40_125),
                    },
                ),
                (
                    2,
                    PathStatus {
                        up: false,
                        rtt_us: None,
                    },
                ),
            ]),
            candidates: Vec::new(),
            send: BTreeMap::new(),
            receive: BTreeMap::from([(3, judged)]),
            signals: BTreeMap::from([("accepted".to_owned(), 1), ("epoch".to_owned(), 2)]),
        }
    }

    #[test]
    fn candidates_show_whether_they_are_answered_and_paths() {
        let candidates = r#"[
            { "peer": "edge-2", "interface": "wan1", "local": "192.0.2.1", "remote": "192.0.2.2", "answers": true, "path": 3 },
            { "peer": "edge-2", "interface": "wan2", "local": "10.0.0.1", "remote": "192.0.2.2", "answers": false, "path": null } ]"#;
        let status = ControllerStatus {
            candidates: serde_json::from_str(candidates).unwrap(),
            ..status()
        };
        let text = super::candidates(&status);
        let rows = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let wanted = [
            "",
            "candidates",
            "peer interface local remote state path",
            "edge-2 wan1 192.0.2.1 192.0.2.2 answers 3",
            "edge-2 wan2 10.0.0.1 192.0.2.2 no answer",
        ];
        assert_eq!(rows.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn people_see_tables() {
        assert_eq!(
            describe(&status(), 100_000),
            "connected to the controller https://192.0.2.1:14750 for 12 s; assignment 7\n\
             \n\
             keys\n\
             \x20 peer  made by    own public key              public key of the peer\n\
             edge-2    nodes  5e5e5e5e5e5e5e5e  0a0a0a0a0a0a0a0a, 0b0b0b0b0b0b0b0b\n\
             \n\
             paths\n\
             path  state  round trip\n\
             \x20  1     up   40.125 ms\n\
             \x20  2   DOWN   no answer\n\
             \n\
             policies\n\
             \x20flow  number            epoch  paths     probed  reason\n\
             stage       3  received      4    1,2  3 1 in 64  judged\n\
             \n\
             judged: the last hundred packets by path\n\
             \x20flow      mode  packets  path  sent  in time  only this one\n\
             stage  evidence     5000\n\
             \x20                            1   100       97             12\n\
             \n\
             watched requests\n\
             \x20flow  requests  sent again  late  degraded  packets a request\n\
             stage       300           2     5         1                124\n\
             \n\
             in-band signals: 1 accepted, 2 epoch\n"
        );
    }

    #[test]
    fn what_needs_attention_is_said() {
        let reason = Some("its certificate was revoked".to_owned());
        let not_applied = BTreeMap::from([("stage".parse().unwrap(), "no such peer".to_owned())]);
        let status = ControllerStatus {
            state: "refused".to_owned(),
            reason,
            not_applied,
            observations_dropped: 3,
            ..status()
        };
        let text = describe(&status, 100_000);
        assert!(
            text.contains(
                "THE CONTROLLER REFUSES THIS NODE: its certificate was revoked; assignment 7"
            ),
            "{text}"
        );
        assert!(
            text.contains("flow stage is not as assigned: no such peer"),
            "{text}"
        );
        assert!(text.contains("3 observations were dropped"), "{text}");
    }
}

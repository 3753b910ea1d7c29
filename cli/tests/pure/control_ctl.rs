//! `hawser ctl` as an operator uses it, against a controller.

use hawser_controller::{Config, Server};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use tempfile::TempDir;
use tokio::runtime::Runtime;

struct Rig {
    folder: TempDir,
    /// Stops with the runtime.
    _server: Server,
    _runtime: Runtime,
}

impl Rig {
    /// Starts a controller, and writes a configuration of `hawser ctl` for it.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::new().unwrap();
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let config = Config {
            listen,
            state: folder.path().join("state"),
            ..Config::default()
        };
        let server = runtime.block_on(Server::start(config)).unwrap();
        let settings = format!(
            "controllers = [\"https://{}\"]\nauthority = \"state/authority.pem\"\ntoken_file = \"state/admin.token\"\n",
            server.address()
        );
        fs::write(folder.path().join("ctl.toml"), settings).unwrap();
        Rig {
            folder,
            _server: server,
            _runtime: runtime,
        }
    }

    /// Gives a node settings of its uplink as a tunnel client.
    fn sets_cost(&self, node: &str, cost: u8) {
        let settings = format!("[[uplink]]\ninterface = \"wwan0\"\ncost = {cost}\n");
        fs::write(self.folder.path().join("settings.toml"), settings).unwrap();
        self.says(&format!("tunnel set {node} --file settings.toml"));
    }

    fn ctl(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
        command
            .arg("ctl")
            .args(line.split_whitespace())
            .current_dir(self.folder.path());
        command
            .env("HAWSER_CTL_CONFIG", self.folder.path().join("ctl.toml"))
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    fn says(&self, line: &str) -> String {
        let output = self.ctl(line);
        assert!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.says(&format!("{line} --json"))).unwrap()
    }

    /// Runs a command that must fail with this exit code, and returns its error.
    fn fails(&self, line: &str, code: i32) -> String {
        let output = self.ctl(line);
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(output.stdout.is_empty(), "{line}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Starts with two nodes of the tenant acme.
    fn with_nodes() -> Self {
        let rig = Rig::new();
        rig.says("tenant create acme");
        for node in ["edge-1", "edge-2"] {
            rig.says(&format!(
                "node enrol {node} --tenant acme --out {node}.token"
            ));
        }
        rig
    }
}

#[test]
fn a_flow_is_made_seen_changed_and_removed() {
    let rig = Rig::with_nodes();
    let made = rig.says(
        "flow create stage --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24 \
         --protocol udp --destination-ports 5004-5005 --mode evidence --trigger-destination 198.51.100.0/24",
    );
    assert_eq!(made, "flow stage created\n");
    let list = rig.says("flow list");
    let lines: Vec<&str> = list.lines().collect();
    assert!(
        lines[0].starts_with("NAME   TENANT  FROM    TO      PACKETS"),
        "{list}"
    );
    assert!(
        lines[1].contains("to 203.0.113.0/24, udp, port 5004-5005"),
        "{list}"
    );
    assert!(
        lines[1].contains("after 3 requests later than 150 ms"),
        "{list}"
    );

    rig.says("flow set stage --mode redirect --late-after-ms 200");
    let flow = rig.json("flow show stage");
    assert_eq!(
        (flow["mode"].as_str(), &flow["trigger"]["late_after_ms"]),
        (Some("redirect"), &200.into())
    );
    assert_eq!(
        flow["select"]["destination_ports"],
        serde_json::json!([5004, 5005])
    );

    assert!(rig.says("policy show stage").contains("default route"));
    rig.says("policy set stage none");
    assert_eq!(rig.json("policy show stage")["reason"], "operator");
    rig.says("policy auto stage");
    assert_ne!(rig.json("policy show stage")["reason"], "operator");

    rig.says("flow delete stage");
    assert_eq!(rig.json("flow list"), serde_json::json!([]));
    assert!(rig.says("event list --flow stage").lines().count() > 3);
}

/// Each of the commands reads the flow, changes one field and writes it.
#[test]
fn no_acknowledged_change_is_overwritten_by_another() {
    let rig = Rig::with_nodes();
    rig.says(
        "flow create stage --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24 --mode evidence",
    );
    for round in 1..=5_u32 {
        let changes = [
            (
                format!("--late-after-ms {}", 100 + round),
                "/trigger/late_after_ms",
                (100 + round).into(),
            ),
            (
                format!("--consecutive {}", 10 + round),
                "/trigger/consecutive",
                (10 + round).into(),
            ),
            (
                format!("--window {round}"),
                "/pruning/window_packets",
                round.into(),
            ),
            (
                format!("--paths {round}"),
                "/paths",
                serde_json::json!([round]),
            ),
        ];
        if round == 1 {
            rig.says("flow set stage --trigger-destination 198.51.100.0/24");
        }
        let outputs: Vec<Output> = std::thread::scope(|scope| {
            let set = |line: &String| rig.ctl(&format!("flow set stage {line}"));
            let running: Vec<_> = changes
                .iter()
                .map(|(line, ..)| scope.spawn(move || set(line)))
                .collect();
            running.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let flow = rig.json("flow show stage");
        for (output, (line, pointer, wanted)) in outputs.iter().zip(&changes) {
            let value: &Value = flow.pointer(pointer).unwrap();
            if output.status.success() {
                assert_eq!(value, wanted, "{line} was acknowledged");
            } else {
                let refused = String::from_utf8_lossy(&output.stderr);
                assert!(
                    refused.contains("flow stage was changed by another request"),
                    "{line}: {refused}"
                );
            }
        }
        assert!(outputs.iter().any(|output| output.status.success()));
    }
}

#[test]
fn the_audit_tells_who_changed_what() {
    let rig = Rig::with_nodes();
    let audit = rig.says("audit list --kind tenant");
    let lines: Vec<&str> = audit.lines().collect();
    assert!(
        lines[0].starts_with("NUMBER") && lines.len() == 2,
        "{audit}"
    );
    assert!(
        lines[1].contains("token admin") && lines[1].contains("tenant acme created"),
        "{audit}"
    );
    assert!(lines[1].contains("127.0.0.1"), "{audit}");
    let entries = rig.json("audit list --actor admin --name edge-1");
    assert_eq!(entries[0]["action"], "created");
    assert_eq!(
        rig.json(&format!(
            "audit list --after {} --name acme",
            entries[0]["number"]
        )),
        serde_json::json!([])
    );
}

#[test]
fn secrets_go_to_files_that_only_their_owner_reads() {
    let rig = Rig::with_nodes();
    rig.says("token create eyes --scope read --out eyes.token");
    for file in ["edge-1.token", "eyes.token"] {
        let mode = fs::metadata(rig.folder.path().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert!(rig.says("whoami --token-file eyes.token").contains("read"));
    let refused = rig.fails("node revoke edge-1 --token-file eyes.token", 5);
    assert!(refused.contains("operate"), "{refused}");
    for command in [
        "token create eyes-2 --out eyes.token",
        "token rotate eyes --out eyes.token",
        "node enrol edge-1 --tenant acme --out eyes.token",
        "token create eyes-2 --out missing/eyes.token",
    ] {
        let refused = rig.fails(command, 1);
        assert!(refused.contains("nothing was changed"), "{refused}");
    }
    rig.says("whoami --token-file eyes.token");
    assert!(!rig.says("token list").contains("eyes-2"));
    rig.fails("token create eyes --out twice.token", 4);
    assert!(!rig.folder.path().join("twice.token").exists());
    rig.says("token rotate eyes --out new.token");
    rig.says("whoami --token-file new.token");
    rig.fails("whoami --token-file eyes.token", 5);
}

#[test]
fn enrolment_tokens_are_listed_and_withdrawn() {
    let rig = Rig::with_nodes();
    let listed = rig.json("enrolment list --node edge-1");
    let id = listed[0]["id"].as_str().unwrap();
    let token = fs::read_to_string(rig.folder.path().join("edge-1.token")).unwrap();
    let parts: Vec<&str> = token.trim().split('.').collect();
    assert_eq!((parts[1], parts[2]), ("edge-1", id));
    let list = rig.says("enrolment list");
    assert!(list.contains(id) && !list.contains(parts[3]), "{list}");
    rig.says(&format!("enrolment withdraw edge-1 {id}"));
    assert!(
        rig.fails(&format!("enrolment withdraw edge-1 {id}"), 3)
            .contains("no such token")
    );
    assert_eq!(
        rig.json("enrolment list --node edge-1"),
        serde_json::json!([])
    );
    assert_eq!(
        rig.json("enrolment list --node edge-2")
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn settings_of_a_tunnel_client_are_set_shown_and_removed() {
    let rig = Rig::with_nodes();
    let file = |text: &str| fs::write(rig.folder.path().join("settings.toml"), text).unwrap();
    file(
        "search_every_s = 600\n[[uplink]]\ninterface = \"wwan*\"\ncost = 2\nmonthly_cap_mb = 5000\n",
    );
    rig.says("tunnel set edge-1 --file settings.toml");
    let expected = serde_json::json!({ "search_every_s": 600, "uplink": [
        { "interface": "wwan*", "cost": 2, "monthly_cap_mb": 5000 },
    ] });
    assert_eq!(rig.json("tunnel settings edge-1"), expected);
    let clients = rig.says("tunnel clients");
    for part in [
        "edge-1",
        "wwan*: cost=2,monthly_cap_mb=5000",
        "search_every_s: 600",
        "pending",
    ] {
        assert!(clients.contains(part), "{clients}");
    }
    for (wrong, word) in [
        (
            "[[uplink]]\ninterface = \"wwan0\"\nmtu_bytes = 1\n",
            "mtu_bytes",
        ),
        ("search_every_s = 0\nreport_every = 1\n", "line 2"),
    ] {
        file(wrong);
        let refused = rig.fails("tunnel set edge-1 --file settings.toml", 1);
        assert!(refused.contains(word), "{refused}");
    }
    assert_eq!(rig.json("tunnel settings edge-1"), expected);
    rig.says("tunnel clear edge-1");
    assert_eq!(rig.json("tunnel clients"), serde_json::json!([]));
    assert_eq!(rig.json("tunnel settings edge-1"), serde_json::json!({}));
}

#[test]
fn the_file_in_the_documentation_is_applied_once() {
    let rig = Rig::with_nodes();
    let documentation = include_str!("../../../docs/ctl.md");
    let (_, after) = documentation.split_once("```toml\n[[tenants]]").unwrap();
    let (site, _) = after.split_once("```").unwrap();
    fs::write(
        rig.folder.path().join("site.toml"),
        format!("[[tenants]]{site}"),
    )
    .unwrap();

    assert!(
        rig.says("apply --file site.toml --dry-run")
            .contains("would be created")
    );
    assert!(rig.says("apply --file site.toml").contains("created"));
    let again = rig.json("apply --file site.toml");
    assert!(
        again
            .as_array()
            .unwrap()
            .iter()
            .all(|outcome| outcome["change"] == "none"),
        "{again}"
    );
    rig.says("flow set stage --protocol udp");
    rig.says("track set stage --remove edge-2");
    let changed = rig.says("apply --file site.toml");
    assert!(
        changed.contains("changed: select") && changed.contains("changed: readers"),
        "{changed}"
    );
    assert_eq!(
        rig.json("track show stage")["readers"],
        serde_json::json!(["edge-2"])
    );
}

#[test]
fn descriptions_are_changed_and_put_back_by_a_file() {
    let rig = Rig::with_nodes();
    for what in ["tenant", "node"] {
        let name = if what == "tenant" { "acme" } else { "edge-1" };
        rig.says(&format!("{what} set {name} --description upstairs"));
        let shown = rig.json(&format!("{what} show {name}"));
        assert_eq!(shown["description"], "upstairs", "{shown}");
    }
    let file = rig.folder.path().join("site.toml");
    fs::write(
        file,
        "[[tenants]]\nname = \"acme\"\ndescription = \"downstairs\"\n",
    )
    .unwrap();
    let changed = rig.says("apply --file site.toml");
    assert!(changed.contains("changed: description"), "{changed}");
    assert_eq!(rig.json("tenant show acme")["description"], "downstairs");
}

#[test]
fn a_track_is_made_seen_changed_and_removed() {
    let rig = Rig::with_nodes();
    rig.says("track create stage --tenant acme --writer edge-1");
    rig.says("track set stage --add-reader edge-2");
    let list = rig.says("track list --node edge-2");
    assert_eq!(
        list.lines().last(),
        Some("stage  acme    edge-1   edge-2"),
        "{list}"
    );
    rig.says("track rekey stage");
    assert!(rig.says("audit list --kind track").contains("rekeyed"));
    assert!(
        rig.fails("track set stage --remove edge-3", 1)
            .contains("edge-3 is neither")
    );
    assert!(rig.fails("track set stage", 2).contains("--add-writer"));
    assert!(rig.fails("node delete edge-2", 4).contains("stage"));
    rig.says("track set stage --remove edge-2");
    rig.says("node delete edge-2");
    rig.says("track delete stage");
    assert!(rig.fails("track show stage", 3).contains("no track stage"));
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let rig = Rig::new();
    assert!(rig.fails("flow show stage", 3).contains("stage"));
    assert!(
        rig.fails("tenant show acme --controller https://127.0.0.1:1", 6)
            .contains("127.0.0.1:1")
    );
    fs::write(rig.folder.path().join("ctl.toml"), "").unwrap();
    assert!(rig.fails("tenant list", 1).contains("--controller"));
    assert!(
        rig.fails("flow set stage --mode sometimes", 2)
            .contains("redirect")
    );
    assert!(rig.fails("tenant show no/name", 2).contains("letters"));
}

#[test]
fn a_flow_is_described_on_one_screen() {
    let rig = Rig::with_nodes();
    rig.says(
        "flow create stage --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24 --mode evidence",
    );
    let text = rig.says("flow describe stage");
    assert!(text.contains("NOT PROTECTED (NeverRegistered)"), "{text}");
    for part in [
        "CONDITIONS",
        "IngressAlive",
        "POLICY",
        "configured",
        "PATHS",
        "EVENTS",
        "flow_created",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().count() < 40, "{text}");
    let status = rig.json("flow describe stage");
    assert_eq!(status["conditions"][0]["reason"], "NeverRegistered");
    let advice = status["conditions"][0]["message"].as_str().unwrap();
    let command = "`hawser ctl node enrol edge-1 --tenant acme --out edge-1.token`";
    assert!(advice.contains(command), "{advice}");
    assert!(
        rig.fails("flow describe none", 3)
            .contains("`hawser ctl flow list`")
    );
}

#[test]
fn the_version_of_both_ends_and_the_leader_are_shown() {
    let rig = Rig::new();
    let version = rig.json("version");
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(
        (&version["client"], &version["version"]),
        (&own.into(), &own.into())
    );
    assert!(rig.says("version").contains("leader"));
}

#[test]
fn contexts_name_controllers() {
    let rig = Rig::new();
    let url = rig.json("context list");
    assert_eq!(url, serde_json::json!([]));
    let settings = fs::read_to_string(rig.folder.path().join("ctl.toml")).unwrap();
    let url = settings.split('"').nth(1).unwrap();
    rig.says(&format!(
        "context set lab --controller {url} --authority state/authority.pem --token-file state/admin.token"
    ));
    rig.says("context set away --controller https://127.0.0.1:1 --authority state/authority.pem --token-file state/admin.token");
    rig.says("tenant create acme --context lab");
    rig.says("context use away");
    assert!(rig.fails("tenant list", 6).contains("127.0.0.1:1"));
    assert!(rig.says("tenant list --context lab").contains("acme"));
    rig.says("context use lab");
    assert!(
        rig.says("context list").contains("lab   yes"),
        "{}",
        rig.says("context list")
    );
    assert!(
        rig.fails("tenant list --context sea", 1)
            .contains("away, lab")
    );
    rig.says("context remove lab");
    // The settings outside of contexts apply again.
    assert!(rig.says("tenant list").contains("acme"));
}

#[test]
fn an_export_is_applied_and_the_rest_pruned_on_request() {
    let rig = Rig::with_nodes();
    let flows = || -> Vec<String> {
        let flows = rig.json("flow list");
        let name = |flow: &Value| flow["name"].as_str().unwrap().to_owned();
        flows.as_array().unwrap().iter().map(name).collect()
    };
    rig.says("tenant create other");
    for (name, ports) in [("stage", "1"), ("spare", "2")] {
        rig.says(&format!(
            "flow create {name} --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24 \
             --protocol udp --destination-ports {ports} --mode evidence --trigger-destination 198.51.100.0/24"
        ));
    }
    rig.says("track create stage --tenant acme --writer edge-1 --reader edge-2");
    let written = rig.json("export --out site");
    assert_eq!(written[0]["tenant"], "acme");
    let none = rig.json("apply --file site/acme.toml --file site/other.toml --prune");
    assert!(
        none.as_array()
            .unwrap()
            .iter()
            .all(|outcome| outcome["change"] == "none"),
        "{none}"
    );
    assert_eq!(
        rig.json("export --tenant other")["flows"],
        serde_json::json!([])
    );

    // The files of another tenant alone prune nothing of this one.
    rig.says("apply --file site/other.toml --prune --yes");
    rig.says("flow create late --tenant acme --ingress edge-1 --egress edge-2 --destination 192.0.2.0/24 --mode replicate");
    rig.says("flow delete spare");
    let plan = rig.ctl("apply --file site/acme.toml --prune");
    assert_eq!(plan.status.code(), Some(1));
    let text = String::from_utf8(plan.stdout).unwrap();
    assert!(
        text.contains("late   would be deleted") && text.contains("spare  would be created"),
        "{text}"
    );
    assert_eq!(flows(), ["late", "stage"], "nothing was changed");
    rig.says("apply --file site/acme.toml --prune --dry-run");
    assert_eq!(flows(), ["late", "stage"], "nothing was changed");
    rig.says("apply --file site/acme.toml --prune --yes");
    assert_eq!(flows(), ["spare", "stage"]);
    assert!(rig.says("track list").contains("stage"));
}

#[test]
fn settings_of_tunnel_clients_are_exported_applied_and_pruned() {
    let rig = Rig::with_nodes();
    rig.says("tenant create other");
    rig.says("node enrol theirs --tenant other --out theirs.token");
    let set = |node: &str, cost: u8| rig.sets_cost(node, cost);
    set("edge-1", 0);
    set("theirs", 7);
    let settings = |node: &str| rig.json(&format!("tunnel settings {node}"));
    let nodes = ["edge-1", "theirs"];
    let before = nodes.map(settings);
    rig.says("export --out site");
    for node in nodes {
        rig.says(&format!("tunnel clear {node}"));
    }
    let plan = rig.says("apply --file site/acme.toml --dry-run");
    assert!(
        plan.contains("edge-1") && plan.contains("would be created"),
        "{plan}"
    );
    rig.says("apply --file site/acme.toml --file site/other.toml");
    assert_eq!(nodes.map(settings), before);

    set("edge-1", 3);
    let changed = rig.says("apply --file site/acme.toml");
    assert!(changed.contains("changed: settings"), "{changed}");
    assert_eq!(nodes.map(settings), before);

    // Only those of the tenants in the files are deleted, and only with --yes.
    set("edge-2", 3);
    let plan = rig.ctl("apply --file site/acme.toml --prune");
    assert_eq!(plan.status.code(), Some(1));
    let text = String::from_utf8(plan.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("edge-2"));
    assert!(line.unwrap().contains("would be deleted"), "{text}");
    assert_ne!(settings("edge-2"), serde_json::json!({}));
    rig.says("apply --file site/acme.toml --prune --yes");
    assert_eq!(settings("edge-2"), serde_json::json!({}));
    assert_eq!(nodes.map(settings), before);

    let wrong = |file: &str, text: &str| {
        fs::write(rig.folder.path().join(file), text).unwrap();
        rig.ctl(&format!("apply --file {file}"))
    };
    let of_another = "[[tunnel_settings]]\ntenant = \"other\"\nnode = \"edge-2\"\nsettings = { report_every_s = 1 }\n";
    for (text, word) in [
        (of_another, "belongs to acme"),
        (
            &of_another.replace("report_every_s", "report_every"),
            "line 4",
        ),
    ] {
        let output = wrong("wrong.toml", text);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(word), "{error}");
    }
    assert_eq!(settings("edge-2"), serde_json::json!({}));
}

#[test]
fn a_tenant_is_deleted_with_all_that_belongs_to_it_on_request() {
    let rig = Rig::with_nodes();
    rig.says("tenant create other");
    rig.says("node enrol theirs --tenant other --out theirs.token");
    rig.sets_cost("theirs", 1);
    rig.says("token create eyes --scope read --tenant other --out eyes.token");
    let create_all = || {
        rig.says(
            "flow create stage --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24 --mode replicate",
        );
        rig.says("track create stage --tenant acme --writer edge-1 --reader edge-2");
        rig.sets_cost("edge-1", 1);
    };
    create_all();
    rig.says("token create hand --scope admin --tenant acme --out hand.token");
    let count = |list: &str| rig.json(list).as_array().unwrap().len();
    let lists = [
        "flow list",
        "track list",
        "node list",
        "token list",
        "tenant list",
    ];
    let all = lists.map(count);

    let refused = rig.fails("tenant delete acme", 4);
    assert!(refused.contains("the flow stage"), "{refused}");
    rig.fails("tenant delete acme --yes", 2);
    rig.fails("tenant delete none --cascade --yes", 3);
    // The bearer could not delete the tenant, and would lose the token.
    rig.fails(
        "tenant delete acme --cascade --yes --token-file hand.token",
        5,
    );
    let plan = rig.ctl("tenant delete acme --cascade");
    assert_eq!(plan.status.code(), Some(1));
    let text = String::from_utf8(plan.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().take(2).collect())
        .collect();
    let order = [
        ["token", "hand"],
        ["flow", "stage"],
        ["track", "stage"],
        ["tunnel_settings", "edge-1"],
        ["node", "edge-1"],
        ["node", "edge-2"],
        ["tenant", "acme"],
    ];
    assert_eq!(rows, order);
    assert_eq!(lists.map(count), all, "nothing was changed");

    let deleted = rig.says("tenant delete acme --cascade --yes");
    assert_eq!(
        deleted.matches(" deleted").count(),
        order.len(),
        "{deleted}"
    );
    assert_eq!(lists.map(count), [0, 0, 1, 2, 1]);
    let kept = rig.json("tunnel settings theirs");
    assert_eq!(kept["uplink"][0]["cost"], 1);
    // A tenant with the same name is empty afterwards.
    rig.says("tenant create acme");
    for node in ["edge-1", "edge-2"] {
        rig.says(&format!("node enrol {node} --tenant acme"));
    }
    assert_eq!(rig.json("tunnel settings edge-1"), serde_json::json!({}));
    create_all();
}

#[test]
fn a_list_is_watched_and_a_change_is_not() {
    let rig = Rig::new();
    assert!(
        rig.fails("tenant create acme --watch", 2)
            .contains("list, show and describe")
    );
    rig.says("tenant create acme");
    let mut watching = Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(["ctl", "tenant", "list", "--watch=1s"])
        .env("HAWSER_CTL_CONFIG", rig.folder.path().join("ctl.toml"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = |wanted: &str| lines.find(|line| line.as_ref().unwrap().contains(wanted));
    assert!(next("acme").is_some());
    rig.says("tenant create later");
    assert!(next("later").is_some());
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn the_latest_events_are_listed() {
    let rig = Rig::with_nodes();
    let all = rig.json("event list --since 10m").as_array().unwrap().len();
    assert!(all > 2);
    let last = rig.json("event list --tail 2");
    assert_eq!(last.as_array().unwrap().len(), 2);
    assert_eq!(last[1]["kind"], "enrolment_created");
    assert_eq!(
        rig.json("audit list --tail 1 --since 1h")[0]["name"]
            .as_str()
            .unwrap()
            .split('/')
            .next(),
        Some("edge-2")
    );
}

#[test]
fn a_secret_in_a_file_is_described_as_json() {
    let rig = Rig::new();
    rig.says("tenant create acme");
    let token = rig.json("token create eyes --scope read --out eyes.token");
    assert_eq!(
        (&token["name"], &token["file"]),
        (&"eyes".into(), &"eyes.token".into())
    );
    assert!(token["secret"].is_null());
    let enrolment = rig.json("node enrol edge-1 --tenant acme --out edge-1.token");
    assert_eq!(enrolment["file"], "edge-1.token");
    assert!(enrolment["expires_unix_ms"].is_u64() && enrolment["token"].is_null());
}

/// The exit codes that docs/ctl.md documents.
#[test]
fn exit_codes_tell_failures_apart() {
    let rig = Rig::with_nodes();
    assert!(
        rig.fails("tenant show none", 3)
            .contains("`hawser ctl tenant list`")
    );
    rig.says("tenant create acme");
    rig.fails("tenant create acme --description other", 4);
    rig.fails("tenant delete acme", 4);
    rig.says("token create eyes --scope read --out eyes.token");
    rig.fails("tenant create more --token-file eyes.token", 5);
    rig.fails("tenant list --controller https://127.0.0.1:1", 6);
    rig.fails("tenant list --authority no-such-file", 1);
    rig.fails("tenant", 2);
    let enrol = rig.fails("node enrol edge-3 --tenant none", 3);
    assert!(
        enrol.contains("`hawser ctl tenant create NAME`") && !enrol.contains("/v1/"),
        "{enrol}"
    );
    let documentation = include_str!("../../../docs/ctl.md");
    for code in 0..=6 {
        assert!(documentation.contains(&format!("\n| {code} | ")), "{code}");
    }
}

#[test]
fn shells_complete_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["ctl", "completion", shell])
            .output();
        let script = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(script.contains("whoami"), "{shell}");
    }
}

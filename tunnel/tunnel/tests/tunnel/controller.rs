//! Servers and clients that a controller enrolled, and that learn of each other from it.

use crate::process;
use crate::rig::{End, HOST4, PORT, Rig, TIMEOUT, UPLINKS};
use crate::traffic::{Connection, echo};
use hawser_client::{Identity, OperatorClient, enrol};
use hawser_model::Name;
use hawser_model::access::NewEnrolment;
use hawser_model::resource::Tenant;
use hawser_model::tunnel::{SettingsState, TunnelClient, TunnelSettings};
use hawser_testbed::process::Process;
use hawser_tunnel::status::Status;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The lifetime of certificates in the test of their renewal.
const LIFETIME: Duration = Duration::from_secs(20);

const URL: &str = "https://127.0.0.1:14750";

/// A controller at the router, and the nodes that it has enrolled.
struct Controlled {
    controller: Option<Process>,
    rig: Rig,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

impl Controlled {
    fn new(nodes: &[&str]) -> Controlled {
        Controlled::with(nodes, "")
    }

    /// Starts a controller with additional settings of its section `nodes`.
    fn with(nodes: &[&str], more: &str) -> Controlled {
        let rig = Rig::new();
        let config = format!(
            "listen = \"0.0.0.0:14750\"\nnames = [\"10.1.0.2\", \"203.0.0.2\", \"203.0.1.2\"]\nstate = {:?}\n\
             [nodes]\nreport_every_ms = 200\nlease_s = 2\n{more}[tunnels]\naddresses = [\"10.77.0.0/16\", \"fd77::/64\"]\n\
             servers = [\"one\", \"two\"]\n",
            rig.path("control")
        );
        fs::write(rig.path("controller.toml"), config).unwrap();
        let mut controlled = Controlled {
            controller: None,
            rig,
        };
        controlled.start_controller();
        let tenant = Tenant {
            name: name("acme"),
            description: String::new(),
        };
        controlled
            .ask(async |operator| operator.create_tenant(&tenant).await)
            .unwrap();
        nodes.iter().for_each(|node| controlled.enrol(node));
        controlled
    }

    fn start_controller(&mut self) {
        let router = &self.rig.router;
        self.controller = Some(process::start(
            router,
            "controller",
            &self.rig.path("controller.toml"),
        ));
        let start = Instant::now();
        let serves = || {
            router
                .run(|| TcpStream::connect("127.0.0.1:14750").is_ok())
                .unwrap()
        };
        while !serves() {
            assert!(start.elapsed() < TIMEOUT, "the controller does not serve");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a request to the controller as its first operator.
    fn ask<T: Send>(
        &self,
        question: impl AsyncFnOnce(&OperatorClient) -> Result<T, hawser_client::Error> + Send,
    ) -> Result<T, hawser_client::Error> {
        let read = |file: &str| fs::read_to_string(self.rig.path("control").join(file)).unwrap();
        let client = OperatorClient::new(
            &[URL.parse()?],
            &read("authority.pem"),
            &read("admin.token"),
        )?;
        let ask = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(question(&client))
        };
        self.rig.router.run(ask).unwrap()
    }

    fn enrol(&self, node: &str) {
        let enrolment = NewEnrolment {
            tenant: name("acme"),
            valid_s: 600,
        };
        let identity = self.ask(async |operator| {
            let token = operator.enrol_node(&name(node), &enrolment).await?.token;
            enrol(&[URL.parse()?], &token).await
        });
        identity
            .unwrap()
            .store(&self.rig.path(&format!("{node}.node")))
            .unwrap();
    }

    fn server(&self, number: usize, more: &str) -> End {
        let node = ["one", "two"][number];
        let sections = format!(
            "[tls]\nnode = \"{node}.node\"\n[controller]\nurls = [\"https://203.0.{number}.2:14750\"]\n\
             addresses = [\"203.0.{number}.1:{PORT}\"]\n"
        );
        self.rig
            .server_with(number, &format!("nat = false\n{more}"), &sections)
    }

    /// Starts a client that also has the first server in its configuration.
    fn client(&self, node: &str) -> End {
        self.client_with(node, "", "[[uplink]]\ninterface = \"wan*\"\n")
    }

    /// As [`Self::client`], with additional lines in `[controller]` and these uplinks.
    fn client_with(&self, node: &str, more: &str, uplinks: &str) -> End {
        let routes = format!("routes = [\"{HOST4}/32\"]");
        let controller = format!("urls = [\"https://10.1.0.2:14750\"]\n{more}");
        self.client_of(node, &routes, &controller, uplinks)
    }

    /// Starts a client with these lines in `[tunnel]` and in `[controller]` and these uplinks.
    fn client_of(&self, node: &str, routes: &str, controller: &str, uplinks: &str) -> End {
        let config = format!(
            "[tunnel]\nname = \"{node}\"\ninterface = \"tun-{node}\"\n{routes}\nstate = \"{}\"\n\
             [tls]\nnode = \"{node}.node\"\n[controller]\n{controller}\
             [[server]]\nname = \"one\"\naddresses = [\"203.0.0.1:{PORT}\"]\n{uplinks}",
            self.rig.folder.path().display()
        );
        self.rig.start(&self.rig.client, node, "client", &config)
    }

    /// Sets the settings of the tunnel client `car`.
    fn set(&self, settings: Value) {
        let car = name("car");
        let settings: TunnelSettings = serde_json::from_value(settings).unwrap();
        let set = async |operator: &OperatorClient| {
            let tag = operator.tagged_tunnel_settings(&car).await?.tag;
            let replaced = operator.replace_tunnel_settings(&car, &settings, &tag);
            replaced.await
        };
        self.ask(set).unwrap();
    }

    /// Waits until the settings of the only client are in a state.
    fn wait_until_settings(&self, state: SettingsState) -> TunnelClient {
        let start = Instant::now();
        loop {
            let clients = self.ask(async |operator| operator.tunnel_clients().all().await);
            let mut clients = clients.unwrap();
            if clients.len() == 1 && clients[0].state == state {
                return clients.remove(0);
            }
            assert!(start.elapsed() < TIMEOUT, "not {state:?}: {clients:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the controller knows `count` servers.
    fn wait_until_servers(&self, count: usize) {
        let start = Instant::now();
        while self
            .ask(async |operator| operator.tunnel_servers().all().await)
            .unwrap()
            .len()
            != count
        {
            assert!(
                start.elapsed() < TIMEOUT,
                "the controller does not know {count} servers"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_client_has_its_addresses_at_every_server() {
    let controlled = Controlled::new(&["one", "two", "car"]);
    let rig = &controlled.rig;
    let mut servers = [0, 1].map(|number| Some(controlled.server(number, "")));
    controlled.wait_until_servers(2);
    let client = controlled.client("car");
    client.until("both uplinks", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.paths.len() == UPLINKS.len())
    });
    let before = client.session();
    let dying = if before.peer == "one" { 0 } else { 1 };
    rig.route_back_by(dying);
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    connection.wait_for_progress();

    drop(servers[dying].take());
    let other = ["two", "one"][dying];
    let after = client.until("a session at the other server", |status| {
        status.sessions.iter().any(|session| session.peer == other)
    });
    assert_eq!(after.sessions[0].addresses, before.addresses);
    rig.route_back_by(1 - dying);
    connection.wait_for_progress();
    connection.end();
    controlled.wait_until_servers(1);
}

#[test]
fn a_client_goes_where_there_is_room() {
    let controlled = Controlled::new(&["one", "two", "car"]);
    let _full = controlled.server(0, "max_clients = 0");
    let _other = controlled.server(1, "");
    controlled.wait_until_servers(2);
    assert_eq!(controlled.client("car").session().peer, "two");
}

#[test]
fn revoked_or_foreign_certificates_are_not_admitted() {
    let controlled = Controlled::new(&["one", "car", "stranger"]);
    let server = controlled.server(0, "");
    controlled.wait_until_servers(1);
    let _client = controlled.client("car");
    server.until("the client is there", |status| !status.sessions.is_empty());

    controlled
        .ask(async |operator| operator.revoke_node(&name("car")).await)
        .unwrap();
    server.until("it has been thrown out", |status| {
        status.sessions.is_empty()
    });
    server.wait_until_counted("connection_not_admitted", 2);
    assert!(
        server
            .until("it is still out", |_| true)
            .sessions
            .is_empty()
    );

    // A client that trusts the server, with a certificate of the right name from another authority.
    let folder = controlled.rig.folder.path();
    controlled.rig.authority.credentials(folder, "stranger");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let node = format!("{}{}", read("stranger.key"), read("stranger.pem"));
    fs::write(folder.join("stranger.node/node.pem"), node).unwrap();
    let stranger = controlled.client("stranger");
    server.wait_until_counted("connection_handshake", 1);
    assert!(stranger.until("a status", |_| true).sessions.is_empty());
}

#[test]
fn connections_of_a_certificate_that_was_replaced_are_closed() {
    let controlled = Controlled::new(&["one", "car"]);
    let server = controlled.server(0, "");
    controlled.wait_until_servers(1);
    let client = controlled.client("car");
    let paths = |status: &Status| {
        status
            .sessions
            .iter()
            .map(|session| session.paths.len())
            .sum::<usize>()
    };
    server.until("both uplinks", |status| paths(status) == UPLINKS.len());

    // The client keeps using the old key, while the node is enrolled again elsewhere.
    let folder = |name: &str| controlled.rig.path(name);
    fs::rename(folder("car.node"), folder("old.node")).unwrap();
    controlled.enrol("car");
    fs::rename(folder("car.node"), folder("new.node")).unwrap();
    fs::rename(folder("old.node"), folder("car.node")).unwrap();
    server.until("its connections are closed", |status| paths(status) == 0);
    server.wait_until_counted("connection_not_admitted", 1);

    fs::remove_dir_all(folder("car.node")).unwrap();
    fs::rename(folder("new.node"), folder("car.node")).unwrap();
    server.until("it is in again with the new one", |status| {
        paths(status) == UPLINKS.len()
    });
    echo(&controlled.rig.client, &controlled.rig.host, HOST4);
    drop(client);
}

#[test]
fn certificates_of_nodes_that_run_only_a_tunnel_are_renewed() {
    let days = LIFETIME.as_secs_f64() / Duration::from_secs(24 * 3600).as_secs_f64();
    let short = format!("certificate_days = {days:.9}\n");
    let controlled = Controlled::with(&["one", "car"], &short);
    let expires = |node: &str| {
        let folder = controlled.rig.path(&format!("{node}.node"));
        Identity::load(&folder)
            .ok()
            .map(|identity| identity.expires())
    };
    let first = ["one", "car"].map(|node| expires(node).unwrap());
    let server = controlled.server(0, "");
    controlled.wait_until_servers(1);
    let client = controlled.client("car");
    let before = client.session();

    let start = Instant::now();
    let is_over = || {
        first
            .iter()
            .all(|at| SystemTime::now() > *at + Duration::from_secs(1))
    };
    while !is_over() {
        assert!(start.elapsed() < LIFETIME + TIMEOUT);
        thread::sleep(Duration::from_millis(100));
    }
    for (node, first) in ["one", "car"].iter().zip(first) {
        assert!(expires(node) > Some(first), "{node} did not renew");
    }
    // The server presents its new certificate, and a new connection of the client is let in.
    drop(client);
    let client = controlled.client("car");
    assert!(client.session().since_unix_ms > before.since_unix_ms);
    echo(&controlled.rig.client, &controlled.rig.host, HOST4);
    drop(server);
}

#[test]
fn without_a_controller_those_it_let_in_last_are_let_in() {
    let mut controlled = Controlled::new(&["one", "car"]);
    let server = controlled.server(0, "");
    controlled.wait_until_servers(1);
    let client = controlled.client("car");
    let before = client.session();

    controlled.controller = None;
    drop(server);
    let server = controlled.server(0, "");
    let after = client.until("a new session", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.since_unix_ms > before.since_unix_ms)
    });
    assert_eq!(after.sessions[0].addresses, before.addresses);
    echo(&controlled.rig.client, &controlled.rig.host, HOST4);

    // A node that is enrolled later is admitted as soon as the controller is back.
    controlled.start_controller();
    controlled.enrol("late");
    drop(client);
    let late = controlled.client("late");
    assert_ne!(late.session().addresses, before.addresses);
    drop(server);
}

/// Returns the interfaces of the paths that are not on standby, sorted.
fn in_use(status: &Status) -> Vec<&str> {
    let paths = status.sessions.iter().flat_map(|session| &session.paths);
    let in_use = paths.filter(|path| !path.standby);
    let mut names: Vec<_> = in_use.map(|path| path.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Returns the bytes that have been sent over an uplink.
fn sent(status: &Status, uplink: &str) -> u64 {
    let paths = status.sessions.iter().flat_map(|session| &session.paths);
    let of_uplink = paths.filter(|path| path.name == uplink);
    of_uplink.map(|path| path.sent_bytes).sum()
}

#[test]
fn an_operator_moves_traffic_to_another_uplink() {
    let mut controlled = Controlled::new(&["one", "car"]);
    let server = controlled.server(0, "");
    controlled.wait_until_servers(1);
    let uplinks = "[[uplink]]\ninterface = \"wan*\"\nmonthly_cap_mb = 1000\n";
    let client = controlled.client_with("car", "settings = true\n", uplinks);
    let both = |status: &Status| in_use(status) == UPLINKS;
    let before = client.until("both uplinks are in use", both);
    let cost = |cost: [u8; 2]| {
        let uplinks = UPLINKS.iter().zip(cost);
        let uplinks =
            uplinks.map(|(interface, cost)| json!({ "interface": interface, "cost": cost }));
        json!({ "uplink": uplinks.collect::<Vec<_>>() })
    };
    let rig = &controlled.rig;
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    controlled.set(cost([0, 1]));
    client.until("one uplink is in use", |status| in_use(status) == ["wan0"]);
    assert_eq!(
        controlled
            .wait_until_settings(SettingsState::Applied)
            .reason,
        None
    );
    connection.wait_for_progress();

    controlled.set(cost([1, 0]));
    let moved = client.until("the other uplink is in use", |status| {
        in_use(status) == ["wan1"]
    });
    let sent_before = sent(&moved, "wan1");
    connection.wait_for_progress();
    client.until("it carries the traffic", |status| {
        sent(status, "wan1") > sent_before + 1_000_000
    });
    controlled.wait_until_settings(SettingsState::Applied);

    // A path with another MTU takes the place of the one before.
    let mut narrow = cost([1, 0]);
    narrow["uplink"][1]["mtu_bytes"] = json!(1400);
    let full = client.session().mtu_bytes;
    controlled.set(narrow.clone());
    client.until("packets are smaller", |status| {
        status
            .sessions
            .iter()
            .all(|session| session.mtu_bytes + 60 < full)
    });
    connection.wait_for_progress();

    // Settings that the client's file does not allow are refused, and those in force stay.
    let mut above = narrow.clone();
    above["uplink"][1]["monthly_cap_mb"] = json!(1001);
    controlled.set(above);
    let refused = controlled.wait_until_settings(SettingsState::Refused);
    let reason = refused.reason.unwrap();
    assert!(
        reason.contains("monthly_cap_mb of wan1 is above 1000"),
        "{reason}"
    );
    let after = client.until("the status says so", |status| {
        let settings = status.settings.as_deref().unwrap_or_default();
        settings.contains(&reason)
    });
    assert_eq!(in_use(&after), ["wan1"]);
    let of = |status: &Status| (status.pid, status.sessions[0].since_unix_ms);
    assert_eq!(
        of(&after),
        of(&before),
        "neither the process nor the session is another one"
    );
    connection.wait_for_progress();
    connection.end();

    // Without a controller, they are in force after a restart.
    controlled.controller = None;
    drop(client);
    let client = controlled.client_with("car", "settings = true\n", uplinks);
    let kept = client.until("the other uplink is in use", |status| {
        in_use(status) == ["wan1"]
    });
    assert_eq!(kept.settings.as_deref(), Some("applied"));
    let connection = Connection::open(&controlled.rig.client, &controlled.rig.host, HOST4);
    connection.wait_for_progress();
    connection.end();
    drop(server);
}

#[test]
fn a_routed_controller_is_reached_outside_the_tunnel() {
    let controlled = Controlled::new(&["one", "two", "car"]);
    let rig = &controlled.rig;
    let first = controlled.server(0, "");
    controlled.wait_until_servers(1);
    let client = controlled.client_of(
        "car",
        "routes = [\"0.0.0.0/0\", \"::/0\"]\nkill_switch = true",
        "urls = [\"https://203.0.1.2:14750\"]\nsettings = true\n",
        "[[uplink]]\ninterface = \"wan*\"\n",
    );
    client.until("both uplinks are in use", |status| {
        in_use(status) == UPLINKS
    });
    echo(&rig.client, &rig.host, HOST4);
    controlled.set(json!({ "report_every_s": 5 }));
    controlled.wait_until_settings(SettingsState::Applied);

    // Only the controller names the second server.
    rig.blackhole("wan0", true);
    let _second = controlled.server(1, "");
    drop(first);
    client.within(2 * TIMEOUT, "a session at the second server", |status| {
        status.sessions.iter().any(|session| session.peer == "two")
    });
}

#[test]
fn a_client_whose_file_does_not_say_so_takes_no_settings() {
    let controlled = Controlled::new(&["one", "two", "car"]);
    let first = controlled.server(0, "");
    controlled.wait_until_servers(1);
    let client = controlled.client("car");
    client.until("both uplinks are in use", |status| {
        in_use(status) == UPLINKS
    });
    controlled.set(json!({ "uplink": [{ "interface": "wan0", "cost": 1 }] }));
    controlled.wait_until_settings(SettingsState::NotAccepted);
    // Only the controller names the second server: a client that goes there has got an answer with the
    // settings, too.
    let _second = controlled.server(1, "");
    drop(first);
    let status = client.until("both uplinks are in use at the other server", |status| {
        let mut sessions = status.sessions.iter();
        sessions.any(|session| session.peer == "two") && in_use(status) == UPLINKS
    });
    assert_eq!(status.settings, None);
}

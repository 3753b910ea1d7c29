//! Three controllers, each a process, share one etcd while nodes and an operator keep them busy.
//! The leader is killed, etcd is killed and restarted: no policy is lost, and decisions continue.

use crate::server::{EtcdServer, free_port};
use crate::store_suite::{TIMEOUT, in_time};
use hawser_client::{Controller, NodeClient, NodeMessage, OperatorClient, enrol};
use hawser_controller::store::{Etcd, Store};
use hawser_controller::{Config, Server};
use hawser_model::Name;
use hawser_model::access::NewEnrolment;
use hawser_model::node::{Observation, Report};
use hawser_model::resource::{Override, Policy};
use hawser_units::{PathSet, PolicyCode};
use serde_json::{from_value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::watch;

/// The environment variable with the configuration, for the process in which the test below runs
/// this test binary again.
const CONFIG: &str = "HAWSER_TEST_CLUSTER_CONFIG";

const CONTROLLERS: [&str; 3] = ["a", "b", "c"];
const FLOWS: usize = 8;
const LEASE: Duration = Duration::from_secs(3);

async fn controller_process(config: &str) {
    let _server = Server::start(Config::read(config.as_ref()).expect("right"))
        .await
        .expect("started");
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_and_a_restarted_etcd_lose_no_policy() {
    if let Ok(config) = std::env::var(CONFIG) {
        return controller_process(&config).await;
    }
    let mut etcd = EtcdServer::start();
    let store = etcd.connect("hawser/").await;
    let mut cluster = Cluster::start(&etcd).await;
    let operator = cluster.operator(&CONTROLLERS);
    let load = Load::start(&cluster, &operator).await;
    load.decides_on().await;

    let leader = in_time(async {
        loop {
            if let Some(leader) = leader(&store).await {
                break leader;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let killed = Instant::now();
    cluster.kill(&leader);
    in_time(async {
        while self::leader(&store).await.is_none_or(|now| now == leader) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    load.decides_on().await;
    println!(
        "decisions go on {:?} after the leader was killed, with a lease of {LEASE:?}",
        killed.elapsed()
    );
    cluster.run(&leader).await;

    for away in [LEASE / 3, LEASE * 3 / 2] {
        etcd.kill();
        tokio::time::sleep(away).await;
        etcd.start_again();
        let started = Instant::now();
        load.decides_on().await;
        println!(
            "decisions go on {:?} after etcd came back from {away:?}",
            started.elapsed()
        );
    }
    assert!(
        load.seen.reconnected.load(Ordering::Relaxed) > 0,
        "a stream ended with the leader, and there is a new one"
    );

    let (seen, acknowledged) = load.stop().await;
    for name in CONTROLLERS {
        agrees(&cluster.operator(&[name]), &seen, acknowledged).await;
    }
}

/// Waits until a controller has a state that contains what was seen and acknowledged, or a
/// later one.
async fn agrees(operator: &OperatorClient, seen: &BTreeMap<Name, Policy>, acknowledged: u32) {
    in_time(async {
        for (flow, policy) in seen {
            loop {
                if let Ok(held) = operator.policy(flow).await
                    && held.epoch >= policy.epoch
                {
                    assert!(
                        held.epoch > policy.epoch || held == *policy,
                        "{held:?} instead of {policy:?}"
                    );
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    })
    .await;
    let fixed = operator.policy(&name("fixed")).await.expect("it answers");
    assert!(
        fixed.epoch >= acknowledged,
        "{fixed:?} although {acknowledged} was acknowledged"
    );
}

async fn leader(store: &Etcd) -> Option<String> {
    let held = store.get("leader").await.ok()??;
    Some(String::from_utf8_lossy(&held.value).into_owned())
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

struct Cluster {
    directory: TempDir,
    processes: BTreeMap<String, (Controller, Option<Child>)>,
}

impl Cluster {
    async fn start(etcd: &EtcdServer) -> Cluster {
        let directory = TempDir::new().expect("a directory");
        let mut cluster = Cluster {
            directory,
            processes: BTreeMap::new(),
        };
        for name in CONTROLLERS {
            let (state, port) = (cluster.state(name), free_port());
            std::fs::create_dir(&state).expect("made");
            if name != CONTROLLERS[0] {
                for file in ["authority.pem", "authority.key"] {
                    std::fs::copy(cluster.state(CONTROLLERS[0]).join(file), state.join(file))
                        .expect("copied");
                }
            }
            let config = format!(
                "name = '{name}'\nlisten = '127.0.0.1:{port}'\nstate = '{}'\n\
                 [store]\nkind = 'etcd'\nendpoints = ['{}']\n\
                 [nodes]\nreport_every_ms = 1000\nlease_s = {}\n\
                 [limits]\noperator_requests_per_s = 1e6\nnode_requests_per_s = 1e6\nnode_changes_per_s = 1e6\n",
                state.display(),
                etcd.endpoint(),
                LEASE.as_secs()
            );
            std::fs::write(cluster.config(name), config).expect("written");
            let controller = format!("https://127.0.0.1:{port}")
                .parse()
                .expect("an address");
            cluster
                .processes
                .insert(name.to_owned(), (controller, None));
            cluster.run(name).await;
        }
        cluster
    }

    fn state(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.toml"))
    }

    /// Starts a controller and waits until it responds.
    async fn run(&mut self, name: &str) {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "cluster::a_killed_leader_and_a_restarted_etcd_lose_no_policy",
                "--nocapture",
            ])
            .env(CONFIG, self.config(name))
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        self.processes.get_mut(name).expect("known").1 = Some(child);
        let has_token = || self.state(CONTROLLERS[0]).join("admin.token").exists();
        in_time(async {
            while !has_token() || self.operator(&[name]).me().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }

    fn kill(&mut self, name: &str) {
        let mut child = self
            .processes
            .get_mut(name)
            .expect("known")
            .1
            .take()
            .expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    fn controllers(&self, names: &[&str]) -> Vec<Controller> {
        names
            .iter()
            .map(|name| self.processes[*name].0.clone())
            .collect()
    }

    fn operator(&self, names: &[&str]) -> OperatorClient {
        let read =
            |file| std::fs::read_to_string(self.state(CONTROLLERS[0]).join(file)).expect("there");
        OperatorClient::new(
            &self.controllers(names),
            &read("authority.pem"),
            &read("admin.token"),
        )
        .expect("a client")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, child) in self.processes.values_mut() {
            if let Some(child) = child {
                // The process may have exited by itself, which the test detects elsewhere.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// The policies that the ingress received.
struct Seen {
    newest: watch::Sender<BTreeMap<Name, Policy>>,
    reconnected: AtomicU32,
}

/// Two nodes and an operator that send requests continuously.
struct Load {
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    nodes: Vec<tokio::task::JoinHandle<()>>,
    overriding: tokio::task::JoinHandle<u32>,
}

impl Load {
    async fn start(cluster: &Cluster, operator: &OperatorClient) -> Load {
        operator
            .create_tenant(&from_value(json!({ "name": "acme" })).expect("a tenant"))
            .await
            .expect("made");
        let ingress = Arc::new(node(cluster, operator, "in").await);
        let egress = Arc::new(node(cluster, operator, "out").await);
        for (port, (flow, mode)) in (5000..).zip(
            (0..FLOWS)
                .map(|n| (format!("f{n}"), "evidence"))
                .chain([("fixed".to_owned(), "replicate")]),
        ) {
            let flow = json!({ "name": flow, "tenant": "acme", "ingress": "in", "egress": "out", "mode": mode,
                "select": { "destination": "203.0.113.0/24", "protocol": 17, "destination_ports": [port, port] } });
            operator
                .create_flow(&from_value(flow).expect("a flow"))
                .await
                .expect("made");
        }
        let seen = Arc::new(Seen {
            newest: watch::Sender::default(),
            reconnected: AtomicU32::new(0),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let mut nodes = vec![tokio::spawn(listen(ingress.clone(), seen.clone()))];
        nodes.extend([ingress, egress.clone()].map(|node| tokio::spawn(live(node))));
        nodes
            .extend((0..FLOWS).map(|n| {
                tokio::spawn(judge(egress.clone(), name(&format!("f{n}")), seen.clone()))
            }));
        let overriding = tokio::spawn(override_policies(
            cluster.operator(&CONTROLLERS),
            stop.clone(),
        ));
        Load {
            seen,
            stop,
            nodes,
            overriding,
        }
    }

    /// Waits until each flow has had several new policies.
    async fn decides_on(&self) {
        let mut newest = self.seen.newest.subscribe();
        let epochs = |seen: &BTreeMap<Name, Policy>| {
            seen.iter()
                .map(|(flow, p)| (flow.clone(), p.epoch))
                .collect()
        };
        let before: BTreeMap<Name, u32> = epochs(&newest.borrow());
        let is_decided = |seen: &BTreeMap<Name, Policy>| {
            seen.len() > FLOWS
                && seen
                    .iter()
                    .all(|(flow, p)| p.epoch >= before.get(flow).unwrap_or(&0) + 3)
        };
        in_time(newest.wait_for(is_decided))
            .await
            .expect("the load goes on");
    }

    /// Returns the newest policies that the ingress received, and the last epoch of the flow
    /// `fixed` that was acknowledged to the operator.
    async fn stop(self) -> (BTreeMap<Name, Policy>, u32) {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged = in_time(self.overriding).await.expect("no panic");
        for task in self.nodes {
            task.abort();
            match task.await {
                Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
                _ => {}
            }
        }
        (self.seen.newest.borrow().clone(), acknowledged)
    }
}

async fn node(cluster: &Cluster, operator: &OperatorClient, node: &str) -> NodeClient {
    let controllers = cluster.controllers(&CONTROLLERS);
    let enrolment: NewEnrolment = from_value(json!({ "tenant": "acme" })).expect("an enrolment");
    let token = operator
        .enrol_node(&name(node), &enrolment)
        .await
        .expect("made")
        .token;
    let client = NodeClient::new(
        &controllers,
        &enrol(&controllers, &token).await.expect("enrolled"),
    )
    .expect("a client");
    register(&client).await.expect("registered");
    client
}

async fn register(node: &NodeClient) -> Result<(), hawser_client::Error> {
    let end = |number: u8| json!({ "number": number, "interface": "eth0", "local": "192.0.2.1", "remote": "192.0.2.2" });
    let registration = json!({ "version": "1", "paths": [end(1), end(2)] });
    node.register(&from_value(registration).expect("a registration"))
        .await
}

/// Reopens the stream whenever it ends, as an agent does.
async fn listen(node: Arc<NodeClient>, seen: Arc<Seen>) {
    let mut policies: BTreeMap<(Name, u32), Policy> = BTreeMap::new();
    loop {
        if register(&node).await.is_ok()
            && let Ok(mut stream) = node.stream().await
        {
            while let Ok(Some(message)) = stream.next().await {
                let received = match message {
                    NodeMessage::Assignment(assignment) => assignment
                        .sends
                        .into_iter()
                        .map(|send| send.policy)
                        .collect(),
                    NodeMessage::Policy(policy) => vec![policy],
                    NodeMessage::Ping | NodeMessage::Authority(_) => {
                        vec![]
                    }
                };
                for policy in received {
                    let known = policies
                        .entry((policy.flow.clone(), policy.epoch))
                        .or_insert(policy.clone());
                    assert_eq!(
                        *known, policy,
                        "an epoch has one policy, regardless of its source"
                    );
                    // A controller that has not caught up yet may send an older policy, which a
                    // node ignores.
                    seen.newest.send_if_modified(|newest| {
                        let is_newer = newest
                            .get(&policy.flow)
                            .is_none_or(|known| known.epoch < policy.epoch);
                        if is_newer {
                            newest.insert(policy.flow.clone(), policy);
                        }
                        is_newer
                    });
                }
            }
        }
        seen.reconnected.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sends reports, so that the node's lease is renewed.
async fn live(node: Arc<NodeClient>) {
    loop {
        // A lost report is made up for by the next one.
        let _ = node.report(&Report::default()).await;
        tokio::time::sleep(LEASE / 6).await;
    }
}

/// Requests another path whenever the previous request has been applied.
async fn judge(node: Arc<NodeClient>, flow: Name, seen: Arc<Seen>) {
    let mut newest = seen.newest.subscribe();
    loop {
        let policy = newest
            .wait_for(|seen| seen.contains_key(&flow))
            .await
            .expect("the load goes on")[&flow]
            .clone();
        let (epoch, code) = (policy.epoch, if policy.code.0 == 1 { 2 } else { 1 });
        let judged = Observation::Judged {
            flow: flow.clone(),
            epoch,
            code: PolicyCode(code),
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason: "test".into(),
        };
        let report = Report {
            observations: vec![judged],
            ..Report::default()
        };
        // An observation that is lost, or ignored because there is no leader, is repeated.
        let _ = node.report(&report).await;
        let decided = newest.wait_for(|seen| seen[&flow].epoch > epoch);
        let _ = tokio::time::timeout(Duration::from_millis(500), decided).await;
    }
}

/// Changes the policy of the flow `fixed` as fast as possible. Returns the last acknowledged epoch.
async fn override_policies(operator: OperatorClient, stop: Arc<AtomicBool>) -> u32 {
    let (mut acknowledged, start) = (0, Instant::now());
    for round in 0u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        assert!(start.elapsed() < TIMEOUT * 10);
        let code = u8::try_from(1 + round % 2).expect("one or two");
        let choice: Override = from_value(json!({ "code": code })).expect("an override");
        match operator.override_policy(&name("fixed"), choice).await {
            Ok(policy) => {
                // The policy is unchanged if the previous request failed.
                assert!(
                    policy.epoch >= acknowledged,
                    "{policy:?} although {acknowledged} was acknowledged"
                );
                assert_eq!(policy.code.0, code, "{policy:?}");
                acknowledged = policy.epoch;
            }
            // No controller responds, or the store does not.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    acknowledged
}

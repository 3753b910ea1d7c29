//! Tenants, nodes, tokens and flows that are created and deleted concurrently, through two
//! controllers on one store.

use super::controllers::Pair;
use super::{Subject, in_time};
use futures_util::StreamExt;
use futures_util::future::join_all;
use hawser_controller::store::{Change, Store};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const WORKERS: usize = 6;
const STEPS: usize = 100;

/// Only a few names, so that requests conflict.
const TENANTS: [&str; 2] = ["t0", "t1"];
const NODES: [&str; 3] = ["n0", "n1", "n2"];
const FLOWS: [&str; 2] = ["f0", "f1"];
const TOKENS: [&str; 1] = ["k0"];

/// A request: method, path and body.
type Step = (&'static str, String, Option<Value>);

fn step() -> impl Strategy<Value = Step> {
    let tenant = || prop::sample::select(&TENANTS[..]);
    let node = || prop::sample::select(&NODES[..]);
    let flow = || prop::sample::select(&FLOWS[..]);
    let token = || prop::sample::select(&TOKENS[..]);
    let removed = |kind: &'static str| move |name| ("DELETE", format!("/v1/{kind}/{name}"), None);
    prop_oneof![
        2 => tenant().prop_map(|name| ("POST", "/v1/tenants".to_owned(), Some(json!({ "name": name })))),
        2 => tenant().prop_map(removed("tenants")),
        3 => (node(), tenant()).prop_map(|(name, tenant)| {
            ("POST", format!("/v1/nodes/{name}/enrolment"), Some(json!({ "tenant": tenant })))
        }),
        2 => node().prop_map(removed("nodes")),
        3 => (flow(), tenant(), node(), node()).prop_map(|(name, tenant, ingress, egress)| {
            let flow = json!({ "name": name, "tenant": tenant, "ingress": ingress, "egress": egress,
                "mode": "single", "select": { "destination": "203.0.113.0/24" } });
            ("POST", "/v1/flows".to_owned(), Some(flow))
        }),
        2 => flow().prop_map(removed("flows")),
        1 => (token(), tenant()).prop_map(|(name, tenant)| {
            let token = json!({ "name": name, "scope": "read", "tenant": tenant });
            ("POST", "/v1/tokens".to_owned(), Some(token))
        }),
        1 => token().prop_map(removed("tokens")),
    ]
}

fn steps(seed: u64) -> Vec<Step> {
    let config = Config {
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let strategy = prop::collection::vec(step(), STEPS);
    strategy
        .new_tree(&mut TestRunner::new(config))
        .expect("it generates")
        .current()
}

pub(crate) async fn nothing_outlives_what_it_refers_to(subject: &impl Subject) {
    let store = subject.store();
    let (_, start) = store.list_all("").await.expect("read");
    let pair = Arc::new(Pair::start(&store).await);
    let workers = (0..WORKERS).map(|worker| {
        let pair = pair.clone();
        tokio::spawn(async move {
            let mut granted = 0;
            for (method, path, body) in steps(worker as u64) {
                let (status, answer) = pair.call(worker, method, &path, body).await;
                assert!(
                    !matches!(status, 500..),
                    "{method} {path}: {status} {answer}"
                );
                granted += usize::from(status < 300);
            }
            granted
        })
    });
    let granted: usize = join_all(workers)
        .await
        .into_iter()
        .map(|worker| worker.expect("no panic"))
        .sum();
    assert!(
        granted > WORKERS * STEPS / 10,
        "{granted} steps did something"
    );
    replay(&*store, start).await;
    Arc::into_inner(pair)
        .expect("the only reference")
        .stop()
        .await;
}

/// Replays every commit since `after` and verifies after each one that all references are valid.
async fn replay(store: &dyn Store, after: u64) {
    let (entries, until) = store.list_all("").await.expect("read");
    let last = entries
        .iter()
        .map(|entry| entry.revision)
        .max()
        .unwrap_or(until);
    let mut held: BTreeMap<String, Value> = BTreeMap::new();
    let (mut revision, mut commits) = (after, 0);
    let mut watch = store.watch("", after);
    while revision < last {
        let change = in_time(watch.next())
            .await
            .expect("the watch goes on")
            .expect("nothing was compacted");
        if change.revision() != revision {
            refers_to_nothing_that_is_gone(&held, revision);
            (revision, commits) = (change.revision(), commits + 1);
        }
        match change {
            Change::Put(entry) => {
                let value = serde_json::from_slice(&entry.value).unwrap_or_default();
                held.insert(entry.key.to_string(), value);
            }
            Change::Delete { key, .. } => drop(held.remove(&*key)),
        }
    }
    refers_to_nothing_that_is_gone(&held, revision);
    assert!(
        commits > WORKERS * STEPS / 10,
        "{commits} commits were looked at"
    );
}

fn refers_to_nothing_that_is_gone(held: &BTreeMap<String, Value>, revision: u64) {
    let of = |kind: &'static str| held.iter().filter(move |(key, _)| key.starts_with(kind));
    let tenant_of = |node: &str| Some(&held.get(&format!("node/{node}"))?["tenant"]);
    let is_tenant = |name: &Value| {
        name.as_str()
            .is_some_and(|name| held.contains_key(&format!("tenant/{name}")))
    };
    for (key, node) in of("node/") {
        assert!(
            is_tenant(&node["tenant"]),
            "revision {revision}: {key} has no tenant: {node}"
        );
    }
    for (key, token) in of("token/") {
        let tenant = &token["token"]["tenant"];
        assert!(
            tenant.is_null() || is_tenant(tenant),
            "revision {revision}: {key} has no tenant: {token}"
        );
    }
    for (key, record) in of("flow/") {
        let flow = &record["flow"];
        for end in ["ingress", "egress"] {
            let tenant = tenant_of(flow[end].as_str().expect("a name"));
            assert_eq!(
                tenant,
                Some(&flow["tenant"]),
                "revision {revision}: {end} of {key}: {flow}"
            );
        }
    }
}

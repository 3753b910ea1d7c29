//! Random operations: sequentially against a model, and concurrently against the order of the
//! revisions.

use super::{Subject, in_time, next};
use hawser_controller::store::{Change, Error, Expect, Store, Write};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::sync::Arc;

const KEYS: u8 = 5;

/// A write to one of a few keys. Expectations refer to the state that the writer last saw, so that
/// many of them hold.
#[derive(Debug, Clone)]
struct Op {
    key: u8,
    expect: Wanted,
    action: What,
}

#[derive(Debug, Clone, Copy)]
enum Wanted {
    Any,
    Absent,
    AsSeen,
    Wrong,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Put(u8),
    PutLeased(u8),
    Delete,
    Check,
}

fn commit() -> impl Strategy<Value = Vec<Op>> {
    let wanted = prop_oneof![
        4 => Just(Wanted::Any), 1 => Just(Wanted::Absent), 3 => Just(Wanted::AsSeen), 1 => Just(Wanted::Wrong)
    ];
    let what = prop_oneof![
        4 => any::<u8>().prop_map(What::Put),
        2 => any::<u8>().prop_map(What::PutLeased),
        2 => Just(What::Delete),
        1 => Just(What::Check)
    ];
    let op = (0..KEYS, wanted, what).prop_map(|(key, expect, action)| Op {
        key,
        expect,
        action,
    });
    prop::collection::vec(op, 1..4).prop_map(|mut ops| {
        ops.sort_by_key(|op| op.key);
        ops.dedup_by_key(|op| op.key);
        ops
    })
}

fn generate(commits: usize, seed: u8) -> Vec<Vec<Op>> {
    let config = Config {
        rng_seed: proptest::test_runner::RngSeed::Fixed(seed.into()),
        ..Config::default()
    };
    let strategy = prop::collection::vec(commit(), commits);
    strategy
        .new_tree(&mut TestRunner::new(config))
        .expect("it generates")
        .current()
}

/// The content of the keys: value and revision.
type Held = BTreeMap<String, (Vec<u8>, u64)>;

fn name(key: u8) -> String {
    format!("key/{key}")
}

fn resolve(op: &Op, seen: &Held, lease: i64) -> Write {
    let key = name(op.key);
    let revision = seen.get(&key).map(|(_, revision)| *revision);
    let expect = match op.expect {
        Wanted::Any => Expect::Any,
        Wanted::Absent => Expect::Absent,
        Wanted::AsSeen => revision.map_or(Expect::Absent, Expect::Revision),
        Wanted::Wrong => Expect::Revision(revision.unwrap_or(0) + 1_000_000_000),
    };
    let write = match op.action {
        What::Put(value) => Write::put(&key, [value]),
        What::PutLeased(value) => Write::put(&key, [value]).under(lease),
        What::Delete => Write::delete(&key),
        What::Check => Write::check(&key, Expect::Any),
    };
    write.when(expect)
}

/// The model: one map. It uses the returned revisions, which are checked against the watch.
fn apply(held: &mut Held, ops: &[Op], revision: u64) {
    for op in ops {
        match op.action {
            What::Put(value) | What::PutLeased(value) => {
                drop(held.insert(name(op.key), (vec![value], revision)))
            }
            What::Delete => drop(held.remove(&name(op.key))),
            What::Check => {}
        }
    }
}

fn first_conflict(held: &Held, ops: &[Op], seen: &Held) -> Option<(String, Option<u64>)> {
    ops.iter().find_map(|op| {
        let (key, found) = (
            name(op.key),
            held.get(&name(op.key)).map(|(_, revision)| *revision),
        );
        let is_as_expected = match op.expect {
            Wanted::Any => true,
            Wanted::Absent => found.is_none(),
            Wanted::AsSeen => found == seen.get(&key).map(|(_, revision)| *revision),
            Wanted::Wrong => false,
        };
        (!is_as_expected).then_some((key, found))
    })
}

async fn held_by(store: &dyn Store) -> Held {
    let (entries, _) = store.list_all("key/").await.expect("read");
    entries
        .into_iter()
        .map(|e| (e.key.to_string(), (e.value.to_vec(), e.revision)))
        .collect()
}

/// Follows the watch until it has delivered the store's content.
async fn replay(store: &dyn Store, after: u64, expected: &Held) {
    let mut watch = store.watch("key/", after);
    let (mut replayed, mut revision) = (Held::new(), after);
    while replayed != *expected {
        let change = next(&mut watch).await;
        assert!(change.revision() >= revision, "in order");
        revision = change.revision();
        match change {
            Change::Put(e) => {
                drop(replayed.insert(e.key.to_string(), (e.value.to_vec(), e.revision)))
            }
            Change::Delete { key, .. } => drop(replayed.remove(&*key)),
        }
    }
}

pub(crate) async fn agrees_with_the_model(subject: &impl Subject) {
    let store = subject.store();
    let lease = store.grant(super::TIMEOUT * 10).await.expect("granted").id;
    for seed in 0..5 {
        let start = store
            .commit(vec![Write::put("start", [seed])])
            .await
            .expect("written");
        let (mut held, mut last) = (Held::new(), start);
        for ops in generate(60, seed) {
            let writes = ops.iter().map(|op| resolve(op, &held, lease)).collect();
            match (
                store.commit(writes).await,
                first_conflict(&held, &ops, &held),
            ) {
                (Ok(revision), None) => {
                    assert!(revision >= last);
                    apply(&mut held, &ops, revision);
                    last = revision;
                }
                (Err(Error::Conflict { key, found }), Some(conflict)) => {
                    assert_eq!((key, found), conflict)
                }
                (result, conflict) => {
                    panic!("seed {seed}: {ops:?}: {result:?}, but the model says {conflict:?}")
                }
            }
        }
        assert_eq!(held_by(&*store).await, held, "seed {seed}");
        replay(&*store, start, &held).await;
        let clear = (0..KEYS).map(|key| Write::delete(name(key))).collect();
        store.commit(clear).await.expect("cleared");
    }
}

/// Several concurrent writers: sorted by revision, their commits must be a history in which every
/// expectation held.
pub(crate) async fn commits_have_one_order(subject: &impl Subject) {
    const WRITERS: u8 = 6;
    let lease = subject
        .store()
        .grant(super::TIMEOUT * 10)
        .await
        .expect("granted")
        .id;
    let writing: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write_at_random(subject.store(), writer, lease)))
        .collect();
    let mut history = Vec::new();
    for writer in writing {
        history.extend(in_time(writer).await.expect("no panic"));
    }
    // A commit of checks returns the revision that it saw, so it comes after the commit that
    // created it.
    history.sort_by_key(|(revision, ops, _)| (*revision, !changes_something(ops)));

    let mut held = Held::new();
    for (revision, ops, seen) in &history {
        assert_eq!(
            first_conflict(&held, ops, seen),
            None,
            "revision {revision}: {ops:?}"
        );
        apply(&mut held, ops, *revision);
    }
    assert_eq!(held_by(&*subject.store()).await, held);
}

type Done = (u64, Vec<Op>, Held);

async fn write_at_random(store: Arc<dyn Store>, seed: u8, lease: i64) -> Vec<Done> {
    let mut done = Vec::new();
    for ops in generate(60, 100 + seed) {
        // Deletions of missing keys change nothing, so their revision does not tell when they
        // happened.
        let ops: Vec<Op> = ops
            .into_iter()
            .filter(|op| !matches!(op.action, What::Delete))
            .collect();
        if ops.is_empty() {
            continue;
        }
        let seen = held_by(&*store).await;
        let writes = ops.iter().map(|op| resolve(op, &seen, lease)).collect();
        match store.commit(writes).await {
            Ok(revision) => done.push((revision, ops, seen)),
            Err(Error::Conflict { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
    done
}

fn changes_something(ops: &[Op]) -> bool {
    ops.iter().any(|op| !matches!(op.action, What::Check))
}

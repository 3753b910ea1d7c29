//! Watches: no change is lost or out of order, and a watcher that is too late gets an error.

use super::{Subject, in_time, next, put};
use futures_util::StreamExt;
use hawser_controller::store::{Change, Entry, Error, Follow, Update, Write};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) async fn a_watch_delivers_past_and_future(subject: &impl Subject) {
    let store = subject.store();
    let before = put(&*store, "a/1", "old").await;
    let first = put(&*store, "a/2", "x").await;
    put(&*store, "b/1", "of another prefix").await;
    let mut watch = store.watch("a/", before);

    let deleted = store
        .commit(vec![Write::delete("a/1"), Write::put("a/3", *b"y")])
        .await
        .expect("written");
    let replaced = put(&*store, "a/2", "z").await;

    let entry = |key: &str, value: &[u8], revision| {
        Change::Put(Entry {
            key: key.into(),
            value: value.into(),
            revision,
        })
    };
    assert_eq!(next(&mut watch).await, entry("a/2", b"x", first));
    let mut together = [next(&mut watch).await, next(&mut watch).await];
    together.sort_by(|a, b| a.key().cmp(b.key()));
    let expected = [
        Change::Delete {
            key: "a/1".into(),
            revision: deleted,
        },
        entry("a/3", b"y", deleted),
    ];
    assert_eq!(together, expected);
    assert_eq!(next(&mut watch).await, entry("a/2", b"z", replaced));
}

pub(crate) async fn a_watch_misses_nothing_of_a_storm(subject: &impl Subject) {
    const TASKS: usize = 16;
    const TIMES: usize = 40;
    let store = subject.store();
    let start = put(&*store, "start", "").await;
    let mut watch = store.watch("storm/", start);
    let writing: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = subject.store();
            tokio::spawn(async move {
                for n in 0..TIMES {
                    put(&*store, &format!("storm/{task}"), &n.to_string()).await;
                }
            })
        })
        .collect();

    let mut seen: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    let mut revision = start;
    for _ in 0..TASKS * TIMES {
        let Change::Put(entry) = next(&mut watch).await else {
            panic!("nothing was deleted")
        };
        assert!(entry.revision > revision);
        revision = entry.revision;
        let count = seen.entry(entry.key).or_default();
        assert_eq!(
            *entry.value,
            *count.to_string().as_bytes(),
            "every value, in order"
        );
        *count += 1;
    }
    assert_eq!(seen.len(), TASKS);
    for task in writing {
        task.await.expect("no panic");
    }
}

pub(crate) async fn a_watch_of_forgotten_changes_says_so(subject: &impl Subject) {
    let store = subject.store();
    let start = put(&*store, "a", "1").await;
    put(&*store, "a", "2").await;
    subject.forget_history().await;

    let mut watch = store.watch("a", start);
    let update = in_time(watch.next()).await;
    assert!(
        matches!(update, Some(Err(Error::Compacted(_)))),
        "{update:?}"
    );
    assert_eq!(in_time(watch.next()).await, None);
}

pub(crate) async fn following_survives_forgotten_changes(subject: &impl Subject) {
    let store = subject.store();
    put(&*store, "a/1", "x").await;
    put(&*store, "a/2", "x").await;
    let mut follow = Follow::new(store.clone(), "a/");
    let Update::All(all) = in_time(follow.next()).await else {
        panic!("first comes all there is")
    };
    assert_eq!(all.len(), 2);

    // Changes that it does not fetch now are discarded before it does.
    store
        .commit(vec![Write::delete("a/1")])
        .await
        .expect("deleted");
    let last = put(&*store, "a/3", "x").await;
    subject.forget_history().await;

    let mut known: BTreeMap<Arc<str>, u64> = all.into_iter().map(|e| (e.key, e.revision)).collect();
    while known.get("a/3") != Some(&last) || known.contains_key("a/1") {
        match in_time(follow.next()).await {
            Update::All(all) => known = all.into_iter().map(|e| (e.key, e.revision)).collect(),
            Update::Change(Change::Put(entry)) => drop(known.insert(entry.key, entry.revision)),
            Update::Change(Change::Delete { key, .. }) => drop(known.remove(&key)),
        }
    }
    assert_eq!(known.len(), 2);
}

//! The tests of every store. Each store's own test file calls `suite!` with a function that creates
//! a [`Subject`].

pub(crate) mod controllers;
mod elections;
mod leases;
mod losses;
mod model;
mod references;
mod remains;
mod watches;

pub(crate) use elections::*;
pub(crate) use leases::*;
pub(crate) use losses::*;
pub(crate) use model::*;
pub(crate) use references::*;
pub(crate) use remains::*;
pub(crate) use watches::*;

use async_trait::async_trait;
use futures_util::StreamExt;
use hawser_controller::store::{
    Change, Entry, Error, Expect, MAX_COMMIT_BYTES, MAX_WRITES, Store, Watch, Write,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A timeout longer than any operation takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A separate store for one test.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    fn store(&self) -> Arc<dyn Store>;

    /// Makes the store discard all changes up to now.
    async fn forget_history(&self);
}

macro_rules! suite {
    ($subject:expr; $($test:ident),+ $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            let subject = $subject.await;
            store_suite::$test(&subject).await;
        })+
    };
    ($subject:expr) => {
        store_suite::suite!($subject;
            holds_what_was_written,
            refuses_what_is_not_as_expected,
            writes_all_or_nothing,
            one_of_many_creates_a_key,
            no_increment_is_lost,
            lists_in_pages,
            lists_thousands_at_once,
            refuses_requests_that_some_store_would_not_take,
            a_watch_delivers_past_and_future,
            a_watch_misses_nothing_of_a_storm,
            a_watch_of_forgotten_changes_says_so,
            following_survives_forgotten_changes,
            a_lease_that_runs_out_takes_its_keys_along,
            a_lease_lives_while_it_is_kept_alive,
            a_revoked_lease_is_gone,
            a_key_written_again_leaves_its_lease,
            one_candidate_leads,
            a_dead_leader_is_replaced,
            a_former_leader_cannot_write,
            a_leader_whose_key_is_deleted_stops,
            agrees_with_the_model,
            commits_have_one_order,
            nothing_outlives_what_it_refers_to,
            a_node_inherits_nothing_that_another_controller_keeps,
            an_expired_token_stays_until_others_need_its_place,
            a_node_lost_without_a_controller_is_reported_once,
            a_node_that_is_lost_when_the_leader_ends_is_reported_once,
            a_node_that_moves_to_another_controller_is_not_lost,
            a_node_whose_announcement_was_interrupted_is_lost,
        );
    };
}

pub(crate) use suite;

pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what)
        .await
        .expect("it takes too long")
}

/// Waits until the condition holds.
pub(crate) async fn until(holds: impl AsyncFn() -> bool) {
    in_time(async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(crate) async fn next(watch: &mut Watch) -> Change {
    in_time(watch.next())
        .await
        .expect("the watch goes on")
        .expect("a change")
}

fn keys(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| &*entry.key).collect()
}

async fn put(store: &dyn Store, key: &str, value: &str) -> u64 {
    store
        .commit(vec![Write::put(key, value.as_bytes())])
        .await
        .expect("written")
}

pub(crate) async fn holds_what_was_written(subject: &impl Subject) {
    let store = subject.store();
    assert_eq!(store.get("a").await, Ok(None));

    let first = put(&*store, "a", "1").await;
    let second = put(&*store, "a", "2").await;
    assert!(second > first);
    let held = store.get("a").await.expect("read").expect("held");
    assert_eq!(
        (&*held.key, &*held.value, held.revision),
        ("a", b"2".as_slice(), second)
    );

    let deleted = store
        .commit(vec![Write::delete("a")])
        .await
        .expect("deleted");
    assert!(deleted > second);
    assert_eq!(store.get("a").await, Ok(None));
    assert_eq!(
        store.commit(vec![Write::delete("a")]).await,
        Ok(deleted),
        "nothing changes"
    );
}

pub(crate) async fn refuses_what_is_not_as_expected(subject: &impl Subject) {
    let store = subject.store();
    let revision = put(&*store, "a", "1").await;
    let conflict = |key: &str, found| {
        Err(Error::Conflict {
            key: key.into(),
            found,
        })
    };

    let create = |key| store.commit(vec![Write::put(key, *b"2").when(Expect::Absent)]);
    assert_eq!(create("a").await, conflict("a", Some(revision)));
    create("b").await.expect("there was no such key");

    let replace = |key, old| store.commit(vec![Write::put(key, *b"3").when(Expect::Revision(old))]);
    assert_eq!(
        replace("a", revision + 1000).await,
        conflict("a", Some(revision))
    );
    assert_eq!(replace("c", revision).await, conflict("c", None));
    let replaced = replace("a", revision).await.expect("as expected");
    assert_eq!(replace("a", revision).await, conflict("a", Some(replaced)));

    let delete = |old| store.commit(vec![Write::delete("a").when(Expect::Revision(old))]);
    assert_eq!(delete(revision).await, conflict("a", Some(replaced)));
    delete(replaced).await.expect("as expected");
}

pub(crate) async fn writes_all_or_nothing(subject: &impl Subject) {
    let store = subject.store();
    let token = put(&*store, "tokens/1", "secret").await;
    let enrol = |name: &str| {
        store.commit(vec![
            Write::delete("tokens/1").when(Expect::Revision(token)),
            Write::put(format!("nodes/{name}"), name.as_bytes()).when(Expect::Absent),
            Write::check("nodes/forbidden", Expect::Absent),
        ])
    };

    let revision = enrol("first").await.expect("the token is good");
    assert_eq!(
        enrol("second").await,
        Err(Error::Conflict {
            key: "tokens/1".into(),
            found: None
        })
    );

    let (entries, as_of) = store.list_all("nodes/").await.expect("read");
    assert_eq!(
        (keys(&entries), entries[0].revision),
        (vec!["nodes/first"], revision)
    );
    assert!(as_of >= revision);

    let only_checks = store
        .commit(vec![Write::check(
            "nodes/first",
            Expect::Revision(revision),
        )])
        .await;
    assert_eq!(only_checks, Ok(revision));
}

pub(crate) async fn one_of_many_creates_a_key(subject: &impl Subject) {
    let tries: Vec<_> = (0..20)
        .map(|n| {
            let store = subject.store();
            tokio::spawn(async move {
                store
                    .commit(vec![Write::put("a", [n]).when(Expect::Absent)])
                    .await
                    .is_ok()
            })
        })
        .collect();
    let mut winners = Vec::new();
    for (n, attempt) in tries.into_iter().enumerate() {
        if attempt.await.expect("no panic") {
            winners.push(u8::try_from(n).expect("small"));
        }
    }
    let held = subject.store().get("a").await.expect("read").expect("held");
    assert_eq!(winners, *held.value);
}

pub(crate) async fn no_increment_is_lost(subject: &impl Subject) {
    const TASKS: u64 = 8;
    const TIMES: u64 = 10;
    put(&*subject.store(), "counter", "0").await;
    let counting = (0..TASKS).map(|_| {
        let store = subject.store();
        tokio::spawn(async move {
            for _ in 0..TIMES {
                increment(&*store).await;
            }
        })
    });
    for task in counting.collect::<Vec<_>>() {
        in_time(task).await.expect("no panic");
    }
    let held = subject
        .store()
        .get("counter")
        .await
        .expect("read")
        .expect("held");
    assert_eq!(&*held.value, (TASKS * TIMES).to_string().as_bytes());
}

async fn increment(store: &dyn Store) {
    loop {
        let held = store.get("counter").await.expect("read").expect("held");
        let count: u64 = std::str::from_utf8(&held.value)
            .expect("text")
            .parse()
            .expect("a number");
        let write = Write::put("counter", (count + 1).to_string().as_bytes())
            .when(Expect::Revision(held.revision));
        match store.commit(vec![write]).await {
            Ok(_) => return,
            Err(Error::Conflict { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

pub(crate) async fn lists_in_pages(subject: &impl Subject) {
    let store = subject.store();
    for key in ["b/3", "a/1", "b/1", "b", "c/1", "b/2", "b/10"] {
        put(&*store, key, key).await;
    }
    let first = store.list("b/", None, 3).await.expect("read");
    assert_eq!(
        (keys(&first.entries), first.more),
        (vec!["b/1", "b/10", "b/2"], true)
    );
    let rest = store.list("b/", Some("b/2"), 3).await.expect("read");
    assert_eq!((keys(&rest.entries), rest.more), (vec!["b/3"], false));

    let after_a_key_that_is_gone = store.list("b/", Some("b/11"), 1).await.expect("read");
    assert_eq!(keys(&after_a_key_that_is_gone.entries), ["b/2"]);
    let before_the_prefix = store.list("b/", Some("a"), 10).await.expect("read");
    assert_eq!(before_the_prefix.entries.len(), 4);
    assert_eq!(store.list("d", None, 10).await.expect("read").entries, []);
}

pub(crate) async fn lists_thousands_at_once(subject: &impl Subject) {
    const COMMITS: usize = 50;
    let store = subject.store();
    for commit in 0..COMMITS {
        let writes = (0..MAX_WRITES).map(|n| Write::put(format!("many/{commit:02}{n:02}"), *b"x"));
        store.commit(writes.collect()).await.expect("written");
    }
    let (entries, _) = store.list_all("many/").await.expect("read");
    assert_eq!(entries.len(), COMMITS * MAX_WRITES);
    assert!(entries.is_sorted_by(|a, b| a.key < b.key));
}

pub(crate) async fn refuses_requests_that_some_store_would_not_take(subject: &impl Subject) {
    let store = subject.store();
    let too_many = (0..=MAX_WRITES)
        .map(|n| Write::put(format!("{n}"), *b"x"))
        .collect();
    let refused = [
        vec![],
        too_many,
        vec![Write::put("", *b"x")],
        vec![Write::put("a", *b"x"), Write::delete("a")],
        vec![Write::put("a", vec![0; MAX_COMMIT_BYTES])],
        vec![
            Write::put("a", vec![0; MAX_COMMIT_BYTES / 2]),
            Write::put("b", vec![0; MAX_COMMIT_BYTES / 2]),
        ],
    ];
    for writes in refused {
        let refusal = store.commit(writes).await;
        assert!(matches!(refusal, Err(Error::Invalid(_))), "{refusal:?}");
    }
    assert_eq!(store.list_all("").await.expect("read").0, []);

    store
        .commit(vec![Write::put("a", vec![0; MAX_COMMIT_BYTES - 1])])
        .await
        .expect("the largest is taken");
}

//! Leases: keys that expire.

use super::{Subject, in_time, next, put};
use hawser_controller::store::{Change, Error, Lease, Store, Write};
use std::time::Duration;

/// So long that a busy machine renews it in time.
const TTL: Duration = Duration::from_secs(5);

async fn put_under(store: &dyn Store, key: &str, lease: Lease) -> Result<u64, Error> {
    store
        .commit(vec![Write::put(key, *b"alive").under(lease.id)])
        .await
}

pub(crate) async fn a_lease_that_runs_out_takes_its_keys_along(subject: &impl Subject) {
    let store = subject.store();
    let lease = store.grant(TTL).await.expect("granted");
    assert!(lease.ttl >= TTL);
    put_under(&*store, "nodes/1", lease).await.expect("written");
    let last = put_under(&*store, "nodes/2", lease).await.expect("written");
    assert!(store.get("nodes/1").await.expect("read").is_some());

    let mut watch = store.watch("nodes/", last);
    let mut gone = [next(&mut watch).await, next(&mut watch).await];
    gone.sort_by(|a, b| a.key().cmp(b.key()));
    assert!(
        matches!(&gone[0], Change::Delete { key, revision } if &**key == "nodes/1" && *revision > last)
    );
    assert!(matches!(&gone[1], Change::Delete { key, .. } if &**key == "nodes/2"));
    assert_eq!(store.list_all("nodes/").await.expect("read").0, []);
    assert_eq!(
        store.keep_alive(lease.id).await,
        Err(Error::LeaseGone(lease.id))
    );
    assert_eq!(
        put_under(&*store, "nodes/1", lease).await,
        Err(Error::LeaseGone(lease.id))
    );
}

pub(crate) async fn a_lease_lives_while_it_is_kept_alive(subject: &impl Subject) {
    let store = subject.store();
    let kept = store.grant(TTL).await.expect("granted");
    put_under(&*store, "kept", kept).await.expect("written");

    // Other leases that expire one after the other measure the time.
    for _ in 0..2 {
        let clock = store.grant(TTL).await.expect("granted");
        let revision = put_under(&*store, "clock", clock).await.expect("written");
        let mut watch = store.watch("clock", revision);
        let ran_out = next(&mut watch);
        tokio::pin!(ran_out);
        loop {
            tokio::select! {
                change = &mut ran_out => {
                    assert!(matches!(change, Change::Delete { .. }));
                    break;
                }
                () = tokio::time::sleep(TTL / 4) => store.keep_alive(kept.id).await.expect("in time"),
            }
        }
    }
    assert!(store.get("kept").await.expect("read").is_some());
}

pub(crate) async fn a_revoked_lease_is_gone(subject: &impl Subject) {
    let store = subject.store();
    let lease = store
        .grant(Duration::from_secs(3600))
        .await
        .expect("granted");
    put_under(&*store, "a", lease).await.expect("written");

    store.revoke(lease.id).await.expect("revoked");
    assert_eq!(store.get("a").await, Ok(None));
    assert_eq!(
        store.keep_alive(lease.id).await,
        Err(Error::LeaseGone(lease.id))
    );
    store.revoke(lease.id).await.expect("once more is no error");
}

pub(crate) async fn a_key_written_again_leaves_its_lease(subject: &impl Subject) {
    let store = subject.store();
    let (first, second) = (
        store.grant(TTL * 100).await.expect("granted"),
        store.grant(TTL * 100).await.expect("granted"),
    );
    put_under(&*store, "stays", first).await.expect("written");
    put(&*store, "stays", "for good").await;
    put_under(&*store, "moves", first).await.expect("written");
    put_under(&*store, "moves", second).await.expect("written");
    put(&*store, "goes", "for good").await;
    put_under(&*store, "goes", first).await.expect("written");

    in_time(store.revoke(first.id)).await.expect("revoked");
    let (left, _) = store.list_all("").await.expect("read");
    assert_eq!(super::keys(&left), ["moves", "stays"]);
}

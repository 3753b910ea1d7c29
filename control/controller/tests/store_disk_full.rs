//! A full disk: writes are rejected with a reason, reads and leases continue, and writes continue
//! once there is space.

use futures_util::StreamExt;
use hawser_controller::store::{Change, Embedded, Error, Expect, Store, Write};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A file system of `bytes` that is visible only to this thread and the threads that it starts. It
/// is unmounted with them.
fn small_disk(directory: &Path, bytes: usize) {
    unshare(CloneFlags::CLONE_NEWNS).expect("root");
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .expect("root");
    let options = format!("size={bytes}");
    mount(
        Some("tmpfs"),
        directory,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .expect("mounted");
}

async fn put(store: &Embedded, n: usize) -> Result<u64, Error> {
    store
        .commit(vec![Write::put(format!("flows/{n:06}"), vec![7; 4096])])
        .await
}

#[tokio::test]
async fn a_full_disk_stops_writes_alone() {
    let directory = TempDir::new().expect("a directory");
    small_disk(directory.path(), 8 << 20);
    let ballast = directory.path().join("ballast");
    std::fs::write(&ballast, vec![0; 3 << 20]).expect("there is room");
    let path = directory.path().join("state");
    let store = Embedded::open(&path).expect("opened");
    let lease = store
        .grant(Duration::from_secs(3600))
        .await
        .expect("granted");
    let alive = |n: u8| store.commit(vec![Write::put("alive", [n]).under(lease.id)]);

    let mut written = BTreeSet::new();
    let refusal = loop {
        let n = written.len();
        match put(&store, n).await {
            Ok(_) => written.insert(format!("flows/{n:06}")),
            Err(e) => break e,
        };
    };
    assert!(
        matches!(&refusal, Error::Unavailable(why) if why.contains("cannot write")),
        "{refusal}"
    );
    assert!(!written.is_empty());

    let (entries, revision) = store.list_all("flows/").await.expect("reads go on");
    assert_eq!(
        entries
            .iter()
            .map(|e| e.key.to_string())
            .collect::<BTreeSet<_>>(),
        written
    );
    assert!(alive(1).await.expect("leases go on") > revision);
    assert_eq!(store.keep_alive(lease.id).await, Ok(()));
    let mixed = vec![
        Write::put("durable", *b"x"),
        Write::put("alive", [2]).under(lease.id),
    ];
    assert!(matches!(
        store.commit(mixed).await,
        Err(Error::Unavailable(_))
    ));
    assert_eq!(
        store
            .get("alive")
            .await
            .map(|held| held.map(|e| e.value[0])),
        Ok(Some(1)),
        "all or nothing"
    );

    std::fs::remove_file(&ballast).expect("removed");
    let mut watch = store.watch("flows/", revision);
    let next = written.len();
    while put(&store, next).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    written.insert(format!("flows/{next:06}"));
    assert!(
        matches!(watch.next().await, Some(Ok(Change::Put(entry))) if written.contains(&*entry.key))
    );

    drop(store);
    let store = Embedded::open(&path).expect("opened");
    let (entries, _) = store.list_all("flows/").await.expect("read");
    assert_eq!(
        entries
            .iter()
            .map(|e| e.key.to_string())
            .collect::<BTreeSet<_>>(),
        written
    );
    let create = Write::put("flows/000000", *b"x").when(Expect::Absent);
    assert!(matches!(
        store.commit(vec![create]).await,
        Err(Error::Conflict { .. })
    ));
}

//! The embedded store passes the tests of every store, and keeps its content across a restart.

mod store_suite;

use async_trait::async_trait;
use hawser_controller::store::{Embedded, Error, Expect, OpenError, Store, Write};
use std::path::PathBuf;
use std::sync::Arc;
use store_suite::Subject;
use tempfile::TempDir;

struct Opened {
    store: Arc<Embedded>,
    directory: TempDir,
}

impl Opened {
    fn new() -> Opened {
        let directory = TempDir::new().expect("a directory");
        Opened {
            store: Arc::new(Embedded::open(directory.path().join("state")).expect("opened")),
            directory,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn again(self) -> Opened {
        let Opened { store, directory } = self;
        drop(Arc::into_inner(store).expect("the only reference"));
        Opened {
            store: Arc::new(Embedded::open(directory.path().join("state")).expect("opened")),
            directory,
        }
    }
}

#[async_trait]
impl Subject for Opened {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn forget_history(&self) {
        // The keys are under a lease, so that no write waits for the disk.
        let lease = self
            .store
            .grant(store_suite::TIMEOUT)
            .await
            .expect("granted");
        for commit in 0..700 {
            let writes = (0..100).map(|n| {
                Write::put(format!("forget/{n}"), [u8::from(commit % 2 == 0)]).under(lease.id)
            });
            self.store.commit(writes.collect()).await.expect("written");
        }
    }
}

store_suite::suite!(async { Opened::new() });

#[tokio::test]
async fn a_restart_keeps_all_but_what_was_under_a_lease() {
    let opened = Opened::new();
    let lease = opened
        .store
        .grant(store_suite::TIMEOUT)
        .await
        .expect("granted");
    let written = opened
        .store
        .commit(vec![
            Write::put("kept", *b"1"),
            Write::put("replaced", *b"1"),
        ])
        .await;
    let leased = [Write::put("gone", *b"1"), Write::put("replaced", *b"2")]
        .map(|write| write.under(lease.id));
    let last = opened.store.commit(leased.into()).await.expect("written");

    let opened = opened.again();
    let (entries, revision) = opened.store.list_all("").await.expect("read");
    assert_eq!(
        entries.iter().map(|e| &*e.key).collect::<Vec<_>>(),
        ["kept"]
    );
    assert_eq!(Ok(entries[0].revision), written);
    assert!(revision >= last, "no revision is used twice");
    assert_eq!(
        opened.store.keep_alive(lease.id).await,
        Err(Error::LeaseGone(lease.id))
    );
    let as_before = Write::put("kept", *b"2").when(Expect::Revision(entries[0].revision));
    assert!(
        opened
            .store
            .commit(vec![as_before])
            .await
            .expect("as expected")
            > last
    );
}

#[test]
fn a_second_process_is_refused() {
    let opened = Opened::new();
    let refused = Embedded::open(opened.path());
    assert!(matches!(refused, Err(OpenError::InUse(file)) if file.ends_with("state")));
    opened.again();
}

#[test]
fn a_file_of_something_else_is_refused_and_left_alone() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("state");
    std::fs::write(&path, "not a database").expect("written");
    let refused = Embedded::open(&path);
    assert!(matches!(refused, Err(OpenError::File { .. })));
    assert_eq!(std::fs::read(&path).expect("read"), b"not a database");
}

#[test]
fn the_file_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let opened = Opened::new();
    let mode = std::fs::metadata(opened.path())
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

//! The embedded store after kill -9 during many concurrent writes: acknowledged commits are stored,
//! and stored commits are complete.

use hawser_controller::store::{Embedded, Store, Write};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// The environment variable with the directory, for the process in which this test runs itself
/// again.
const DIRECTORY: &str = "HAWSER_TEST_STORM_IN";
const TASKS: usize = 32;
const KILLS: u64 = 8;

/// Runs in its own process, which the test below starts and kills: every task writes pairs of keys,
/// and prints them only after they are acknowledged.
fn storm(directory: &str) {
    let store = Arc::new(Embedded::open(Path::new(directory).join("state")).expect("opened"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let round = std::process::id();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| runtime.spawn(write_pairs(store.clone(), format!("{round}/{task}"))))
        .collect();
    for task in tasks {
        runtime.block_on(task).expect("no panic");
    }
}

async fn write_pairs(store: Arc<Embedded>, name: String) {
    for n in 0u64.. {
        let key = format!("{name}/{n}");
        let value = key.repeat(10 + usize::try_from(n % 50).expect("small"));
        let mut writes = vec![
            Write::put(format!("a/{key}"), value.as_bytes()),
            Write::put(format!("b/{key}"), value.as_bytes()),
        ];
        if n >= 20 && n % 3 == 0 {
            let old = n - 20;
            writes.extend([
                Write::delete(format!("a/{name}/{old}")),
                Write::delete(format!("b/{name}/{old}")),
            ]);
        }
        let revision = store.commit(writes).await.expect("written");
        // One call per line, so that the lines of several tasks do not mix.
        std::io::stdout()
            .lock()
            .write_all(format!("written {revision} {key}\n").as_bytes())
            .expect("read");
    }
}

#[test]
fn killed_in_a_storm_nothing_is_lost_or_torn() {
    if let Ok(directory) = std::env::var(DIRECTORY) {
        return storm(&directory);
    }
    let directory = TempDir::new().expect("a directory");
    let mut acknowledged = BTreeMap::new();
    for kill in 1..=KILLS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "killed_in_a_storm_nothing_is_lost_or_torn",
                "--nocapture",
            ])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"))
            .lines()
            .map_while(Result::ok);
        let before = acknowledged.len();
        // Each round kills the process at a different time.
        let enough = usize::try_from(kill * kill * 20).expect("small");
        let note = |line: String, acknowledged: &mut BTreeMap<String, u64>| {
            if let Some((revision, key)) = line
                .strip_prefix("written ")
                .and_then(|rest| rest.split_once(' '))
            {
                acknowledged.insert(key.to_owned(), revision.parse().expect("a revision"));
            }
        };
        while acknowledged.len() < before + enough {
            note(lines.next().expect("it goes on"), &mut acknowledged);
        }
        child.kill().expect("it runs");
        // Lines that it printed before it was killed count as well.
        lines.for_each(|line| note(line, &mut acknowledged));
        child.wait().expect("it ends");
        check(&directory.path().join("state"), &acknowledged);
    }
}

fn check(path: &Path, acknowledged: &BTreeMap<String, u64>) {
    let store = Embedded::open(path).expect("it opens after a kill");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (entries, revision) = runtime.block_on(store.list_all("")).expect("read");
    assert!(
        acknowledged.values().all(|used| *used <= revision),
        "no revision is used twice"
    );

    let (mut a, mut b) = (BTreeMap::new(), BTreeMap::new());
    for entry in &entries {
        let (side, key) = entry.key.split_once('/').expect("a key of the storm");
        let value = std::str::from_utf8(&entry.value).expect("text");
        assert!(
            value.len().is_multiple_of(key.len()) && value.replace(key, "").is_empty(),
            "{key}: a torn value"
        );
        let side = if side == "a" { &mut a } else { &mut b };
        side.insert(key.to_owned(), entry.revision);
    }
    assert_eq!(a, b, "whole commits only");
    let deleted: BTreeSet<String> = a.keys().filter_map(|key| deleted_with(key)).collect();
    assert!(
        a.keys().all(|key| !deleted.contains(key)),
        "whole commits only"
    );
    for (key, revision) in acknowledged {
        let is_deleted = !a.contains_key(key);
        assert!(
            !is_deleted || may_be_deleted(key),
            "{key} was acknowledged and is lost"
        );
        assert!(
            is_deleted || a[key] == *revision,
            "{key} is from another commit"
        );
    }
}

/// Returns the key that the commit of this key deleted.
fn deleted_with(key: &str) -> Option<String> {
    let (name, n) = key.rsplit_once('/')?;
    let n: u64 = n.parse().ok()?;
    (n >= 20 && n.is_multiple_of(3)).then(|| format!("{name}/{}", n - 20))
}

fn may_be_deleted(key: &str) -> bool {
    let n: Option<u64> = key.rsplit_once('/').and_then(|(_, n)| n.parse().ok());
    n.is_some_and(|n| (n + 20).is_multiple_of(3))
}

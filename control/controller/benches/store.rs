//! Benchmark of the stores: `cargo bench -p hawser-controller --bench store`, with `-- embedded` or
//! `-- etcd` for only one of them.
//!
//! The second one requires the Debian package `etcd-server`. The benchmark writes to the directory
//! for temporary files, so the results apply to that disk.

#[allow(dead_code, reason = "the tests also stop and restart it")]
#[path = "../tests/etcd/server.rs"]
mod server;

use futures_util::StreamExt;
use hawser_controller::store::{Embedded, Store, Write};
use server::EtcdServer;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The number of nodes and flows that one controller should manage.
const NODES: usize = 10_000;
const FLOWS: usize = 100_000;

/// The approximate size of a flow and its policy as JSON.
const VALUE_BYTES: usize = 500;

#[tokio::main]
async fn main() {
    let chosen = std::env::args()
        .nth(1)
        .filter(|argument| !argument.starts_with('-'));
    let is_chosen = |name: &str| chosen.as_deref().is_none_or(|chosen| chosen == name);
    if is_chosen("embedded") {
        embedded().await;
    }
    if is_chosen("etcd") {
        etcd().await;
    }
}

async fn embedded() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = directory.path().join("state");
    let before = resident_mib();
    let store = Arc::new(Embedded::open(&path).expect("opened"));
    println!("embedded, in {}", directory.path().display());
    puts(store.clone(), "one/", 1, 500).await;
    puts(store.clone(), "few/", 16, 5_000).await;
    puts(store.clone(), "many/", 256, 20_000).await;
    clear(&*store, &["one/", "few/", "many/"]).await;
    puts(store.clone(), "flows/", 1024, FLOWS).await;
    leases(store.clone(), NODES).await;
    watching(store.clone()).await;
    println!(
        "  memory for {NODES} leased keys and {FLOWS} flows: {:.0} MiB",
        resident_mib() - before
    );
    println!(
        "  file: {:.0} MiB",
        mib(std::fs::metadata(&path).expect("there").len())
    );

    let copy = directory.path().join("copy");
    std::fs::copy(&path, &copy).expect("there is room");
    drop(store);
    time_to_open("after a stop", &path);
    time_to_open("after kill -9", &copy);
}

async fn etcd() {
    let server = EtcdServer::start();
    let store = Arc::new(server.connect("hawser/").await);
    println!("etcd, one member, on loopback");
    puts(store.clone(), "one/", 1, 500).await;
    puts(store.clone(), "few/", 16, 5_000).await;
    puts(store.clone(), "many/", 256, 20_000).await;
    clear(&*store, &["one/", "few/", "many/"]).await;
    puts(store.clone(), "flows/", 1024, FLOWS).await;
    leases(store.clone(), NODES).await;
    watching(store.clone()).await;
    let start = Instant::now();
    let (entries, _) = store.list_all("").await.expect("read");
    println!(
        "  list of all {} entries: {:.0} ms",
        entries.len(),
        ms(start.elapsed())
    );
}

/// Puts `count` new keys by `writers` writers, each of which waits for its last put before the
/// next.
async fn puts(store: Arc<dyn Store>, prefix: &str, writers: usize, count: usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let writing: Vec<_> = (0..writers)
        .map(|_| {
            let (store, prefix, next) = (store.clone(), prefix.to_owned(), next.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return times;
                    }
                    let write = Write::put(format!("{prefix}{n:08}"), vec![b'x'; VALUE_BYTES]);
                    let asked = Instant::now();
                    store.commit(vec![write]).await.expect("written");
                    times.push(asked.elapsed());
                }
            })
        })
        .collect();
    let times = joined(writing).await;
    report(
        &format!("puts of {VALUE_BYTES} bytes, {writers} writers"),
        start.elapsed(),
        times,
    );
}

/// Registers nodes, each with a lease and a key under it, and renews each lease once.
async fn leases(store: Arc<dyn Store>, count: usize) {
    let start = Instant::now();
    let (ids, times) = in_parallel(&store, 0..count, async |store, n| {
        let lease = store
            .grant(Duration::from_secs(600))
            .await
            .expect("granted");
        let write = Write::put(format!("alive/{n:05}"), vec![b'x'; VALUE_BYTES]).under(lease.id);
        store.commit(vec![write]).await.expect("written");
        lease.id
    })
    .await;
    report("grants with a key each, 64 at once", start.elapsed(), times);
    let start = Instant::now();
    let kept = in_parallel(&store, ids, async |store, id| {
        store.keep_alive(id).await.expect("alive")
    })
    .await;
    report("leases kept alive, 64 at once", start.elapsed(), kept.1);
}

async fn in_parallel<T, R>(
    store: &Arc<dyn Store>,
    items: impl IntoIterator<Item = T>,
    work: impl AsyncFn(&dyn Store, T) -> R,
) -> (Vec<R>, Vec<Duration>) {
    let work = &work;
    let timed = items.into_iter().map(|item| async move {
        let asked = Instant::now();
        (work(&**store, item).await, asked.elapsed())
    });
    futures_util::stream::iter(timed)
        .buffer_unordered(64)
        .unzip()
        .await
}

/// Measures the time from the start of a put until a watch has delivered it.
async fn watching(store: Arc<dyn Store>) {
    const COUNT: usize = 200;
    let (_, revision) = store.list_all("watched/").await.expect("read");
    let mut watch = store.watch("watched/", revision);
    let (start, mut times) = (Instant::now(), Vec::new());
    for n in 0..COUNT {
        let asked = Instant::now();
        store
            .commit(vec![Write::put("watched/1", n.to_string().as_bytes())])
            .await
            .expect("written");
        watch.next().await.expect("it goes on").expect("a change");
        times.push(asked.elapsed());
    }
    report(
        "puts until a watch delivers them, 1 writer",
        start.elapsed(),
        times,
    );
}

async fn clear(store: &dyn Store, prefixes: &[&str]) {
    for prefix in prefixes {
        let (entries, _) = store.list_all(prefix).await.expect("read");
        for part in entries.chunks(100) {
            store
                .commit(
                    part.iter()
                        .map(|entry| Write::delete(&*entry.key))
                        .collect(),
                )
                .await
                .expect("deleted");
        }
    }
}

fn time_to_open(when: &str, path: &Path) {
    let start = Instant::now();
    let store = Embedded::open(path).expect("opened");
    println!("  opened {when}: {:.0} ms", ms(start.elapsed()));
    drop(store);
}

async fn joined(tasks: Vec<tokio::task::JoinHandle<Vec<Duration>>>) -> Vec<Duration> {
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("no panic"));
    }
    times
}

fn report(what: &str, took: Duration, mut times: Vec<Duration>) {
    times.sort_unstable();
    let part = |part: usize| ms(times[(times.len() - 1) * part / 100]);
    let rate = f64::from(u32::try_from(times.len()).expect("small")) / took.as_secs_f64();
    println!(
        "  {what}: {rate:.0} per s; p50 {:.2} ms, p99 {:.2} ms",
        part(50),
        part(99)
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("Linux");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("Linux");
    mib(kib * 1024)
}

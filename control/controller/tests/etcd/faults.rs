//! etcd is killed and restarted during writes and watches; leaders are disconnected from it.

use crate::server::{EtcdServer, connect};
use crate::store_suite::controllers::Pair;
use crate::store_suite::{TIMEOUT, in_time, until};
use futures_util::StreamExt;
use hawser_controller::store::{
    Change, Election, Error, EtcdSettings, Expect, Follow, Role, Store, Update, Write,
};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Writes its own keys one after the other and returns the acknowledged ones.
async fn storm(store: Arc<dyn Store>, task: usize, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("storm/{task}/{n:06}");
        let pair = vec![
            Write::put(&key, *b"x").when(Expect::Absent),
            Write::put(format!("twin/{task}/{n:06}"), *b"x"),
        ];
        match store.commit(pair).await {
            Ok(_) => acknowledged.push(key),
            Err(Error::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(e) => panic!("{e}"),
        }
    }
    acknowledged
}

/// Follows the watch until it has delivered all of `expected`.
async fn converges(store: &dyn Store, after: u64, expected: &BTreeMap<Arc<str>, u64>) {
    let mut watch = store.watch("storm/", after);
    let (mut seen, mut revision) = (BTreeMap::new(), after);
    while seen != *expected {
        let change = in_time(watch.next())
            .await
            .expect("it goes on")
            .expect("nothing was compacted");
        assert!(
            change.revision() > revision,
            "none twice, none out of order"
        );
        revision = change.revision();
        let Change::Put(entry) = change else {
            panic!("nothing was deleted")
        };
        seen.insert(entry.key, entry.revision);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_killed_in_a_storm_loses_nothing() {
    const TASKS: usize = 8;
    const KILLS: usize = 3;
    let mut server = EtcdServer::start();
    let store: Arc<dyn Store> = Arc::new(server.connect("hawser/").await);
    let start = store
        .commit(vec![Write::put("start", *b"x")])
        .await
        .expect("written");
    let stop = Arc::new(AtomicBool::new(false));
    let writing: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(storm(store.clone(), task, stop.clone())))
        .collect();

    // A watch that is open all the time has to be resumed after every kill.
    let mut watch = store.watch("storm/", start);
    let mut watched = BTreeMap::new();
    for kill in 0..=KILLS {
        for _ in 0..200 {
            let Change::Put(entry) = in_time(watch.next())
                .await
                .expect("it goes on")
                .expect("nothing was compacted")
            else {
                panic!("nothing was deleted")
            };
            let before = watched.insert(entry.key, entry.revision);
            assert_eq!(before, None, "none twice");
        }
        if kill < KILLS {
            server.kill();
            server.start_again();
        }
    }
    stop.store(true, Ordering::Relaxed);

    let mut acknowledged = Vec::new();
    for task in writing {
        acknowledged.extend(in_time(task).await.expect("no panic"));
    }
    let (entries, _) = store.list_all("storm/").await.expect("read");
    let held: BTreeMap<Arc<str>, u64> = entries.into_iter().map(|e| (e.key, e.revision)).collect();
    assert!(acknowledged.len() > 200 * KILLS);
    assert_eq!(
        acknowledged
            .iter()
            .find(|key| !held.contains_key(key.as_str())),
        None,
        "acknowledged and lost"
    );
    let (twins, _) = store.list_all("twin/").await.expect("read");
    assert_eq!(twins.len(), held.len(), "whole commits only");

    while watched != held {
        let Change::Put(entry) = in_time(watch.next())
            .await
            .expect("it goes on")
            .expect("nothing was compacted")
        else {
            panic!("nothing was deleted")
        };
        watched.insert(entry.key, entry.revision);
    }
    converges(&server.connect("hawser/").await, start, &held).await;
}

/// Requires users in an etcd, and returns the settings of one.
async fn require_users(server: &EtcdServer) -> EtcdSettings {
    let settings = server.settings("hawser/");
    connect(settings.clone()).await;
    let mut admin = etcd_client::Client::connect([server.endpoint()], None)
        .await
        .expect("connected");
    let root = ("root", "secret");
    admin.user_add(root.0, root.1, None).await.expect("added");
    admin.role_add(root.0).await.expect("added");
    admin
        .user_grant_role(root.0, root.0)
        .await
        .expect("granted");
    admin.auth_enable().await.expect("enabled");
    EtcdSettings {
        user: Some((root.0.into(), root.1.into())),
        ..settings
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_authenticates_again_after_a_restart_of_etcd() {
    let mut server = EtcdServer::start();
    let settings = require_users(&server).await;
    // It writes nothing, so no other request renews its token.
    let reader: Arc<dyn Store> = Arc::new(connect(settings.clone()).await);
    let writer = connect(settings).await;
    let mut follow = Follow::new(reader, "");
    assert_eq!(in_time(follow.next()).await, Update::All(vec![]));
    for key in ["once", "twice"] {
        server.kill();
        server.start_again();
        in_time(async {
            while writer.commit(vec![Write::put(key, *b"x")]).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let update = in_time(follow.next()).await;
        let Update::Change(Change::Put(entry)) = update else {
            panic!("{update:?}")
        };
        assert_eq!(&*entry.key, key);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_does_not_hear_from_etcd_says_so() {
    let server = EtcdServer::start();
    let store: Arc<dyn Store> = Arc::new(server.connect("hawser/").await);
    let pair = Pair::start(&store).await;
    pair.leads().await;
    let is_behind = async || {
        let (status, answer) = pair.call(0, "GET", "/readyz", None).await;
        let detail = answer["detail"].as_str().unwrap_or_default();
        status == 503 && detail.contains("what this controller knows of the store is")
    };
    assert!(!is_behind().await);
    server.signal(Signal::SIGSTOP);
    until(&is_behind).await;
    server.signal(Signal::SIGCONT);
    until(async || pair.call(0, "GET", "/readyz", None).await.0 == 200).await;
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_stalled_etcd_do_not_pile_up() {
    const REQUESTS: usize = 5_000;
    let server = EtcdServer::start();
    let mut settings = server.settings("hawser/");
    let store = Arc::new(connect(settings.clone()).await);
    settings.timeout = Duration::from_millis(500);
    let impatient = Arc::new(connect(settings).await);
    server.signal(Signal::SIGSTOP);
    let commits: Vec<_> = (0..REQUESTS)
        .map(|n| {
            let store = impatient.clone();
            let write = Write::put(format!("many/{n}"), *b"x");
            tokio::spawn(async move { store.commit(vec![write]).await })
        })
        .collect();
    for commit in commits {
        let outcome = commit.await.expect("no panic");
        assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    }
    server.signal(Signal::SIGCONT);
    let after = async || impatient.commit(vec![Write::put("after", *b"x")]).await;
    in_time(async {
        while let Err(error) = after().await {
            let late = "etcd did not respond";
            assert!(
                error.to_string().contains(late),
                "the connection failed: {error}"
            );
        }
    })
    .await;
    let (written, _) = store.list_all("many/").await.expect("read");
    assert!(
        written.len() < REQUESTS / 10,
        "{} requests that nobody waits for reached etcd",
        written.len()
    );
}

/// Decides as fast as possible while it leads. Returns the number of acknowledged decisions.
async fn decide(
    store: Arc<dyn Store>,
    election: Election,
    name: String,
    stop: Arc<AtomicBool>,
) -> usize {
    let (role, mut tries, mut decisions) = (election.role(), 0, 0);
    while !stop.load(Ordering::Relaxed) {
        let Some(leadership) = role.borrow().leadership().cloned() else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let term = leadership.revision();
        // An unacknowledged decision may have been written, so each has its own key.
        tries += 1;
        let write = Write::put(format!("decisions/{term:012}/{tries:06}"), name.as_bytes());
        match store
            .commit(vec![leadership.fence(), write.when(Expect::Absent)])
            .await
        {
            Ok(_) => decisions += 1,
            Err(Error::Conflict { .. } | Error::Unavailable(_)) => {
                tokio::time::sleep(Duration::from_millis(5)).await
            }
            Err(e) => panic!("{e}"),
        }
    }
    in_time(election.resign()).await;
    decisions
}

/// Checks that in the order of all written decisions, no term continues after another one has
/// begun.
async fn terms_in_order(store: &dyn Store) -> Vec<u64> {
    let (entries, _) = store.list_all("decisions/").await.expect("read");
    let mut decisions: Vec<(u64, u64)> = entries
        .iter()
        .map(|e| {
            (
                e.revision,
                e.key
                    .split('/')
                    .nth(1)
                    .and_then(|t| t.parse().ok())
                    .expect("a term"),
            )
        })
        .collect();
    decisions.sort_unstable();
    let mut terms: Vec<u64> = decisions.into_iter().map(|(_, term)| term).collect();
    assert!(terms.is_sorted(), "two leaders decided at once");
    terms.dedup();
    terms
}

async fn decided_after(store: &dyn Store, revision: u64) -> u64 {
    let mut watch = store.watch("decisions/", revision);
    in_time(watch.next())
        .await
        .expect("it goes on")
        .expect("nothing was compacted")
        .revision()
}

/// So long that a busy machine renews it in time.
const TTL: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn decisions_go_on_after_etcd_was_restarted() {
    let mut server = EtcdServer::start();
    let observer = server.connect("hawser/").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut deciding = Vec::new();
    for n in 0..3 {
        let store: Arc<dyn Store> = Arc::new(server.connect("hawser/").await);
        let name = format!("controller-{n}");
        let election = Election::start(store.clone(), "leader", &name, TTL);
        deciding.push(tokio::spawn(decide(store, election, name, stop.clone())));
    }
    let mut last = decided_after(&observer, 0).await;

    // etcd is down for less than the lease, then for longer: the second time no candidate may rely
    // on leading.
    for away in [TTL / 4, TTL * 3 / 2] {
        server.kill();
        tokio::time::sleep(away).await;
        server.start_again();
        let (_, now) = in_time(list_when_it_answers(&observer)).await;
        last = decided_after(&observer, now.max(last)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut decisions = 0;
    for task in deciding {
        decisions += in_time(task).await.expect("no panic");
    }
    let terms = terms_in_order(&observer).await;
    assert!(!terms.is_empty() && decisions > 0);
}

async fn list_when_it_answers(store: &dyn Store) -> (usize, u64) {
    loop {
        if let Ok((entries, revision)) = store.list_all("decisions/").await {
            return (entries.len(), revision);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A leader that is disconnected from etcd, by a relay that stops forwarding, stops before the next
/// one starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_stops_before_the_next_one_starts() {
    let server = EtcdServer::start();
    let observer = server.connect("hawser/").await;
    let relay = Relay::start(server.endpoint()).await;
    let settings = EtcdSettings {
        endpoints: vec![relay.endpoint.clone()],
        ..server.settings("hawser/")
    };
    let settings = EtcdSettings {
        timeout: Duration::from_millis(500),
        ..settings
    };
    let first = Election::start(Arc::new(connect(settings).await), "leader", "first", TTL);
    let held = in_time(first.role().wait_for(|role| role.leadership().is_some()))
        .await
        .expect("it stands")
        .leadership()
        .cloned()
        .expect("it has only just begun");
    let second = Election::start(
        Arc::new(server.connect("hawser/").await),
        "leader",
        "second",
        TTL,
    );

    relay.cut.store(true, Ordering::Relaxed);
    let cut_off = Instant::now();
    let next = in_time(second.role().wait_for(|role| role.leadership().is_some()))
        .await
        .expect("it stands")
        .clone();
    assert!(
        !held.holds(),
        "the former leader believes in itself while another one leads"
    );
    assert!(matches!(&*first.role().borrow(), Role::Follower { .. }));
    let next = next.leadership().expect("it has only just begun");
    let refused = observer
        .commit(vec![held.fence(), Write::put("decision", *b"late")])
        .await;
    assert!(
        matches!(refused, Err(Error::Conflict { .. })),
        "{refused:?}"
    );
    observer
        .commit(vec![next.fence(), Write::put("decision", *b"good")])
        .await
        .expect("it leads");
    assert!(cut_off.elapsed() < TIMEOUT);

    // After it reconnects, it is a follower.
    relay.cut.store(false, Ordering::Relaxed);
    let follows =
        |role: &Role| matches!(role, Role::Follower { leader: Some(leader) } if leader == "second");
    in_time(first.role().wait_for(follows))
        .await
        .expect("it stands");
}

/// Forwards bytes between clients and etcd until it is cut, which both ends notice only by the
/// missing responses.
struct Relay {
    endpoint: String,
    cut: Arc<AtomicBool>,
}

impl Relay {
    async fn start(to: &str) -> Relay {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let (to, cut) = (
            to.trim_start_matches("http://").to_owned(),
            Arc::new(AtomicBool::new(false)),
        );
        let relayed = cut.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = tokio::net::TcpStream::connect(&to).await else {
                    continue;
                };
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(pass_on(near_in, far_out, relayed.clone()));
                tokio::spawn(pass_on(far_in, near_out, relayed.clone()));
            }
        });
        Relay { endpoint, cut }
    }
}

async fn pass_on(
    from: tokio::net::tcp::OwnedReadHalf,
    to: tokio::net::tcp::OwnedWriteHalf,
    cut: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        if from.readable().await.is_err() {
            return;
        }
        if cut.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        let read = match from.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let mut sent = 0;
        while sent < read {
            if to.writable().await.is_err() {
                return;
            }
            match to.try_write(&buffer[sent..read]) {
                Ok(bytes) => sent += bytes,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

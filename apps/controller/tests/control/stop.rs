//! A controller that has stopped has released its store.

use crate::rig::{PATIENCE, Rig, config, flow};
use async_trait::async_trait;
use hawser_client::OperatorClient;
use hawser_control::resource::Tenant;
use hawser_controller::Server;
use hawser_controller::store::{
    Embedded, Entry, Error, Lease, LeaseId, Page, Revision, Store, Watch, Write,
};
use parking_lot::Mutex;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The embedded store, with commits that take some time.
struct SlowStore {
    store: Embedded,
    delay: Mutex<Duration>,
    in_flight: watch::Sender<usize>,
}

impl SlowStore {
    fn open(directory: &TempDir) -> Arc<SlowStore> {
        Arc::new(SlowStore {
            store: Embedded::open(directory.path().join("database")).unwrap(),
            delay: Mutex::default(),
            in_flight: watch::Sender::default(),
        })
    }

    fn slow_down(&self, delay: Duration) {
        *self.delay.lock() = delay;
    }

    async fn has_commit_in_flight(&self) {
        let mut in_flight = self.in_flight.subscribe();
        let wait = in_flight.wait_for(|count| *count > 0);
        tokio::time::timeout(PATIENCE, wait).await.unwrap().unwrap();
    }
}

/// A commit from its request until its answer, or until the requester gives up.
struct InFlight<'a>(&'a watch::Sender<usize>);

impl<'a> InFlight<'a> {
    fn begin(count: &'a watch::Sender<usize>) -> InFlight<'a> {
        count.send_modify(|count| *count += 1);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[async_trait]
impl Store for SlowStore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.store.get(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, Error> {
        self.store.list(prefix, after, limit).await
    }

    async fn list_all(&self, prefix: &str) -> Result<(Vec<Entry>, Revision), Error> {
        self.store.list_all(prefix).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, Error> {
        let _in_flight = InFlight::begin(&self.in_flight);
        let delay = *self.delay.lock();
        tokio::time::sleep(delay).await;
        self.store.commit(writes).await
    }

    fn watch(&self, prefix: &str, after: Revision) -> Watch {
        self.store.watch(prefix, after)
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, Error> {
        self.store.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.store.revoke(lease).await
    }
}

async fn start_on(store: &Arc<SlowStore>, directory: TempDir) -> Rig {
    let server = Server::start_on(store.clone(), config(&directory))
        .await
        .unwrap();
    Rig::of(server, directory).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_controller_has_written_the_decisions_that_it_began() {
    let directory = tempfile::tempdir().unwrap();
    let store = SlowStore::open(&directory);
    let rig = start_on(&store, directory).await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    rig.receive(&egress).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b11)
        .await;

    store.slow_down(Duration::from_millis(300));
    rig.register(&ingress, 1).await;
    store.has_commit_in_flight().await;
    // The other commits of the stop take no time, in which this one could end.
    store.slow_down(Duration::ZERO);
    let _directory = rig.stop().await;
    assert_eq!(*store.in_flight.borrow(), 0);
    assert_eq!(Arc::strong_count(&store), 1);
    let policy = store.get("policy/stage").await.unwrap().unwrap();
    let policy: Value = serde_json::from_slice(&policy.value).unwrap();
    assert_eq!(policy["code"], 0b1, "{policy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_ends_does_not_hold_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = SlowStore::open(&directory);
    let rig = start_on(&store, directory).await;
    let controllers = [format!("https://{}", rig.server.address()).parse().unwrap()];
    let operator =
        OperatorClient::new(&controllers, rig.server.authority_pem(), &rig.admin).unwrap();

    store.slow_down(Duration::MAX);
    let tenant = Tenant {
        name: "acme".parse().unwrap(),
        description: String::new(),
    };
    let request = tokio::spawn(async move { operator.create_tenant(&tenant).await });
    store.has_commit_in_flight().await;
    let _directory = rig.stop().await;
    assert_eq!(*store.in_flight.borrow(), 0);
    assert_eq!(Arc::strong_count(&store), 1);
    request.await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_for_metrics_does_not_hold_the_store() {
    let rig =
        Rig::with(|config| config.metrics_listen = Some((Ipv4Addr::LOCALHOST, 0).into())).await;
    let address = rig.server.metrics_address().unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    idle.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok\n") {
        assert_ne!(idle.read_buf(&mut answer).await.unwrap(), 0);
    }
    let mut unfinished = TcpStream::connect(address).await.unwrap();
    unfinished.write_all(b"GET /healthz HTTP").await.unwrap();

    let directory = rig.stop().await;
    let rig = Rig::start(config(&directory), directory).await;
    assert_eq!(rig.get("/healthz").await.status, 200);
    assert_eq!(idle.read_buf(&mut answer).await.unwrap(), 0);
}

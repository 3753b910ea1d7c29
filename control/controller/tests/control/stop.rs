//! A controller that has stopped has released its store.

use crate::rig::{Rig, config, flow};
use crate::store_with_delay::SlowStore;
use hawser_client::OperatorClient;
use hawser_controller::Server;
use hawser_controller::store::Store;
use hawser_model::resource::Tenant;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start_on(store: &Arc<SlowStore>, directory: TempDir) -> Rig {
    let server = Server::start_on(store.clone(), config(&directory))
        .await
        .unwrap();
    Rig::of(server, directory).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_controller_has_written_its_decisions() {
    let directory = tempfile::tempdir().unwrap();
    let store = SlowStore::open(&directory);
    let rig = start_on(&store, directory).await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    rig.receive(&egress).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b11)
        .await;

    store.slow_down(Duration::from_secs(2));
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

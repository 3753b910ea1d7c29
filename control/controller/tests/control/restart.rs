//! State that a killed or stopped controller leaves.

use crate::rig::{Caller, Rig, config, flow};
use hawser_controller::{Config, Server};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// The environment variable with the state directory, for the process in which the test below runs
/// this test binary again.
const STATE: &str = "HAWSER_TEST_CONTROLLER_STATE";

/// The controller that the test below kills. It changes policies as fast as possible and prints
/// each epoch when it is acknowledged.
async fn controller_to_be_killed(state: String) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config {
        state: state.into(),
        ..config(&directory)
    };
    config.limits.operator_requests_per_s = 1e6;
    let rig = Rig::start(config, directory).await;
    rig.two_nodes(2, flow("replicate", true)).await;
    for round in 0u8.. {
        let policy = rig
            .put("/v1/policies/stage", json!({ "code": 1 + round % 2 }))
            .await
            .body;
        println!("acknowledged {}", policy["epoch"]);
        std::io::stdout().flush().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_controller_has_lost_nothing_that_it_acknowledged() {
    if let Ok(state) = std::env::var(STATE) {
        return controller_to_be_killed(state).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "restart::a_killed_controller_has_lost_nothing_that_it_acknowledged",
            "--nocapture",
        ])
        .env(STATE, directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acknowledged = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if let Some(epoch) = line.unwrap().strip_prefix("acknowledged ") {
            acknowledged = epoch.parse().unwrap();
        }
        if acknowledged == 50 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged >= 50);

    let rig = Rig::start(config(&directory), directory).await;
    let policy = rig.policy("stage").await;
    // The write that was in progress may be stored as well.
    let epoch = policy["epoch"].as_u64().unwrap();
    assert!(
        (acknowledged..=acknowledged + 1).contains(&epoch),
        "{acknowledged} and {policy}"
    );
    assert_eq!(
        rig.get("/v1/nodes/in").await.body["paths"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert!(
        rig.get("/v1/nodes/in").await.body["seen_unix_ms"].is_u64(),
        "it was seen"
    );
    let next = rig
        .put("/v1/policies/stage", json!({ "code": 3 }))
        .await
        .body;
    assert_eq!(next["epoch"].as_u64(), Some(epoch + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_controller_ends_streams_and_can_restart() {
    let rig = Rig::new().await;
    let [ingress, _] = rig.two_nodes(2, flow("evidence", true)).await;
    let mut stream = rig.stream(&ingress).await;
    stream.next_of("assignment").await;
    let end_event = tokio::spawn(async move { stream.next_of("end").await });
    let directory = rig.stop().await;
    assert!(
        end_event
            .await
            .unwrap()
            .as_str()
            .unwrap()
            .contains("reconnect")
    );

    let rig = Rig::start(config(&directory), directory).await;
    assert_eq!(rig.get("/v1/flows/stage").await.status, 200);
    let me = rig
        .call(Caller::Node(&ingress), "GET", "/v1/me", None)
        .await;
    assert_eq!(me.status, 200, "certificates stay valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_do_not_share_a_state_directory() {
    let rig = Rig::new().await;
    let error = Server::start(config(&rig.directory)).await.err().unwrap();
    assert!(format!("{error:#}").contains("in use"), "{error:#}");
}

//! `hawser controller` changes a store from the command line.

use crate::rig::{Caller, Identity, Rig, config, flow};
use axum::http::StatusCode;
use hawser_client::{Controller, Identity as Stored, NodeClient, NodeMessage, enrol_in};
use hawser_controller::{Args, AuthorityStep};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Runs `hawser controller` with the state in `directory`, as the command line does.
fn run(directory: &Path, change: impl FnOnce(&mut Args)) -> anyhow::Result<()> {
    let file = directory.join("controller.toml");
    fs::write(&file, format!("state = {directory:?}\n")).unwrap();
    let mut args = Args {
        config: Some(file),
        check: false,
        openapi: false,
        restored: false,
        new_admin_token: false,
        rotate_authority: None,
    };
    change(&mut args);
    std::thread::spawn(move || hawser_controller::run(&args))
        .join()
        .unwrap()
}

async fn assignment(rig: &Rig, node: &Identity) -> Value {
    rig.stream(node).await.next_of("assignment").await
}

fn sent(assignment: &Value) -> (&Value, u64, u64) {
    let epoch = assignment["sends"][0]["policy"]["epoch"].as_u64().unwrap();
    let revision = assignment["revision"].as_u64().unwrap();
    (&assignment["incarnation"], revision, epoch)
}

#[tokio::test]
async fn only_a_restored_store_has_another_incarnation() {
    let rig = Rig::new().await;
    let [ingress, _] = rig.two_nodes(2, flow("replicate", true)).await;
    let directory = rig.stop().await;
    let database = directory.path().join("database");
    let backup = directory.path().join("backup");
    fs::copy(&database, &backup).unwrap();

    let rig = Rig::start(config(&directory), directory).await;
    for code in [1, 2, 3] {
        rig.put("/v1/policies/stage", json!({ "code": code })).await;
    }
    let lost = assignment(&rig, &ingress).await;
    let directory = rig.stop().await;
    let rig = Rig::start(config(&directory), directory).await;
    let restarted = assignment(&rig, &ingress).await;
    assert_eq!(
        sent(&restarted).0,
        sent(&lost).0,
        "a restart changes nothing"
    );
    let directory = rig.stop().await;

    fs::copy(&backup, &database).unwrap();
    run(directory.path(), |args| args.restored = true).unwrap();
    let rig = Rig::start(config(&directory), directory).await;
    // Enough changes for the revisions to overtake those of the lost time.
    let restored = loop {
        let answer = rig.post("/v1/nodes/other/enrolment", json!({ "tenant": "acme" }));
        assert_eq!(answer.await.status, StatusCode::CREATED);
        rig.delete("/v1/nodes/other").await;
        let assignment = assignment(&rig, &ingress).await;
        if sent(&assignment).1 > sent(&lost).1 {
            break assignment;
        }
    };
    assert!(sent(&restored).2 < sent(&lost).2, "its epochs are older");
    assert!(sent(&restored).0.is_string());
    assert_ne!(sent(&restored).0, sent(&lost).0);
    let audit = rig.get("/v1/audit").await.body;
    let entries = audit["items"].as_array().unwrap();
    let is_restoration = |entry: &&Value| entry["action"] == "restored";
    let entry = entries.iter().find(is_restoration).unwrap();
    assert_eq!(entry["actor"]["role"], "controller");
}

#[tokio::test]
async fn a_lost_admin_token_can_be_replaced_on_the_machine() {
    let rig = Rig::new().await;
    let lost = rig.admin.clone();
    let in_use = run(rig.directory.path(), |args| args.new_admin_token = true);
    let in_use = in_use.unwrap_err().to_string();
    assert!(in_use.contains("stop that controller first"), "{in_use}");
    let directory = rig.stop().await;
    fs::remove_file(directory.path().join("admin.token")).unwrap();
    run(directory.path(), |args| args.new_admin_token = true).unwrap();

    let rig = Rig::start(config(&directory), directory).await;
    assert_ne!(rig.admin, lost);
    assert_eq!(rig.get("/v1/tokens").await.status, StatusCode::OK);
    let old = rig.call(Caller::Operator(&lost), "GET", "/v1/me", None);
    assert_eq!(old.await.status, StatusCode::UNAUTHORIZED);
    let audit = rig.get("/v1/audit").await.body;
    let entries = audit["items"].as_array().unwrap().iter();
    let entry = entries.clone().find(|entry| entry["action"] == "replaced");
    let entry = entry.unwrap();
    assert_eq!(
        (&entry["kind"], &entry["name"]),
        (&json!("token"), &json!("admin"))
    );
    assert_eq!(entry["actor"]["name"], "command line");
}

#[tokio::test]
async fn a_store_that_no_controller_has_used_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    for change in [
        (|args| args.new_admin_token = true) as fn(&mut Args),
        |args| args.restored = true,
    ] {
        let error = run(directory.path(), change).unwrap_err().to_string();
        assert!(error.contains("check `state` and `store`"), "{error}");
    }
    assert!(!directory.path().join("admin.token").exists());
}

/// A client of the running controller with that identity.
fn client(rig: &Rig, identity: &Stored) -> NodeClient {
    NodeClient::new(&[controller(rig)], identity).unwrap()
}

fn controller(rig: &Rig) -> Controller {
    format!("https://{}", rig.server.address()).parse().unwrap()
}

/// Performs a step of the rotation and restarts the controller.
async fn rotated(rig: Rig, step: AuthorityStep) -> Rig {
    let directory = rig.stop().await;
    run(directory.path(), |args| args.rotate_authority = Some(step)).unwrap();
    Rig::start(config(&directory), directory).await
}

#[tokio::test]
async fn nodes_learn_the_next_authority_before_it_replaces_the_first() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let token = rig.invite("edge-1").await;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = "edge-1".parse().unwrap();
    let first = enrol_in(folder, &name, &[controller(&rig)], &token)
        .await
        .unwrap();
    let early = Some(AuthorityStep::Switch);
    let refused = run(rig.directory.path(), |args| args.rotate_authority = early);
    assert!(format!("{:#}", refused.unwrap_err()).contains("`add`"));

    let rig = rotated(rig, AuthorityStep::Add).await;
    let mut stream = client(&rig, &first).stream().await.unwrap();
    let authorities = loop {
        if let NodeMessage::Authority(authorities) = stream.next().await.unwrap().unwrap() {
            break authorities;
        }
    };
    drop(stream);
    assert!(Stored::trust(folder, &authorities).unwrap());
    assert!(!Stored::trust(folder, &authorities).unwrap(), "known now");

    let rig = rotated(rig, AuthorityStep::Switch).await;
    assert!(
        client(&rig, &first).me().await.is_err(),
        "it knows the first authority only"
    );
    let both = Stored::load(folder).unwrap();
    client(&rig, &both).me().await.unwrap();
    let renewed = client(&rig, &both).renew(folder).await.unwrap();

    let rig = rotated(rig, AuthorityStep::Remove).await;
    client(&rig, &renewed).me().await.unwrap();
    assert!(
        client(&rig, &both).me().await.is_err(),
        "the first authority issued it"
    );
    assert_eq!(
        rig.server
            .authority_pem()
            .matches("BEGIN CERTIFICATE")
            .count(),
        1
    );
    let token = rig.invite("edge-2").await;
    let folder = tempfile::tempdir().unwrap();
    let name = "edge-2".parse().unwrap();
    enrol_in(folder.path(), &name, &[controller(&rig)], &token)
        .await
        .unwrap();
    rig.stop().await;
}

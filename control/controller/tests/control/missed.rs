//! Events that were removed before they were read.

use crate::rig::{Rig, config};
use hawser_controller::Config;
use serde_json::{Value, json};

fn kinds(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().unwrap();
    items
        .iter()
        .map(|event| event["kind"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn removed_events_leave_an_explicit_gap() {
    let rig = Rig::with(|config| config.max_events = 100).await;
    for number in 0..70 {
        let path = format!("/v1/tenants/t{number}");
        rig.tenant(&format!("t{number}")).await;
        rig.delete(&path).await;
    }
    let all = rig.get("/v1/events?limit=1000").await.body;
    let first = all["items"][0]["number"].as_u64().unwrap();
    assert!(
        !kinds(&rig.get(&format!("/v1/events?after={first}")).await.body)
            .contains(&"events_missed")
    );

    // A controller removes surplus events when it becomes the leader.
    let directory = rig.stop().await;
    let config = Config {
        max_events: 100,
        ..config(&directory)
    };
    let rig = Rig::start(config, directory).await;
    rig.until(async || {
        let rest = rig.get("/v1/events?limit=1000").await.body;
        kinds(&rest).len() <= 102
    })
    .await;
    let page = rig
        .get(&format!("/v1/events?limit=1&after={first}"))
        .await
        .body;
    assert_eq!(kinds(&page)[0], "events_missed");
    assert_eq!(
        (kinds(&page).len(), &page["items"][0]["number"]),
        (2, &json!(first))
    );
    let next = page["next"].as_str().unwrap();
    let page = rig
        .get(&format!("/v1/events?limit=1&after={next}"))
        .await
        .body;
    assert_ne!(kinds(&page)[0], "events_missed", "it is told once");

    let mut stream = rig.events(first).await;
    let event = stream.next_of("event").await;
    assert_eq!(event["kind"], "events_missed");
    let event = stream.next_of("event").await;
    assert_ne!(event["kind"], "events_missed");
}

#[tokio::test]
async fn a_stream_without_events_says_where_to_continue() {
    let rig = Rig::new().await;
    let mut stream = rig.events_of("/v1/events/stream").await;
    stream.next_of("ping").await;
    let after = stream.id;
    drop(stream);
    rig.tenant("gap").await;
    let mut stream = rig.events(after).await;
    let event = stream.next_of("event").await;
    assert_eq!(event["tenant"], "gap");
    assert_eq!(Some(stream.id), event["number"].as_u64());
}

#[tokio::test]
async fn a_stream_of_a_restored_store_names_the_gap_and_goes_on() {
    let rig = Rig::new().await;
    let mut stream = rig.events(1 << 40).await;
    let event = stream.next_of("event").await;
    assert_eq!(event["kind"], "events_missed");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("restored from a backup"), "{message}");
    rig.tenant("later").await;
    assert_eq!(stream.next_of("event").await["tenant"], "later");
}

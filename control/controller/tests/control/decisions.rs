//! From an observation to a policy at the nodes.

use crate::rig::{Caller, Rig, TIMEOUT, flow};
use axum::http::StatusCode;
use hawser_wire::{Key, Signal};
use serde_json::{Value, json};

fn degraded() -> Value {
    json!({ "kind": "degraded", "flow": "stage", "since_due_us": 900, "silent_us": 450_000 })
}

fn judged(epoch: u32, code: u8, probes: u8) -> Value {
    let probe_every = if probes == 0 { 0 } else { 64 };
    json!({ "kind": "judged", "flow": "stage", "epoch": epoch, "code": code, "probes": probes,
        "probe_every": probe_every, "reason": "the rest came too late" })
}

#[tokio::test(flavor = "multi_thread")]
async fn degradation_takes_all_paths_and_a_judgement_removes_some() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(3, flow("evidence", true)).await;
    let (mut at_ingress, mut at_egress) = (rig.stream(&ingress).await, rig.stream(&egress).await);
    let (sends, receives) = (
        at_ingress.next_of("assignment").await,
        at_egress.next_of("assignment").await,
    );
    assert_eq!(sends["sends"][0]["policy"]["code"], 0);
    assert_eq!(
        (
            &receives["receives"][0]["paths"],
            &receives["receives"][0]["peer"]
        ),
        (&json!(0b111), &json!("in"))
    );
    assert_eq!(
        sends["sends"][0]["number"],
        receives["receives"][0]["number"]
    );
    assert_eq!(sends["signal_key"].as_str().map(str::len), Some(32));

    rig.observe(&egress, degraded()).await;
    for stream in [&mut at_ingress, &mut at_egress] {
        let policy = stream.next_of("policy").await;
        assert_eq!(
            (&policy["epoch"], &policy["code"], &policy["reason"]),
            (&json!(2), &json!(0b111), &json!("degraded"))
        );
    }
    rig.observe(&egress, judged(1, 0b1, 0)).await;
    rig.observe(&egress, judged(2, 0b1000, 0)).await;
    assert_eq!(
        rig.policy("stage").await["epoch"],
        2,
        "void judgements change nothing"
    );
    rig.observe(&egress, judged(2, 0b11, 0b100)).await;
    let policy = at_ingress.next_of("policy").await;
    assert_eq!(
        (&policy["epoch"], &policy["code"], &policy["probes"]),
        (&json!(3), &json!(0b11), &json!(0b100))
    );
    assert_eq!(policy, rig.policy("stage").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_without_a_mode_begins_on_one_path_and_takes_help() {
    let rig = Rig::new().await;
    let mut without_mode = flow("auto", true);
    without_mode.as_object_mut().unwrap().remove("mode");
    let [_, egress] = rig.two_nodes(3, without_mode).await;
    assert_eq!(rig.get("/v1/flows/stage").await.body["mode"], "auto");
    rig.receive(&egress).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b1)
        .await;
    let policy = rig.policy("stage").await;
    assert_eq!(
        (&policy["probes"], &policy["probe_every"]),
        (&json!(0b110), &json!(64))
    );

    let epoch = u32::try_from(policy["epoch"].as_u64().unwrap()).unwrap();
    rig.observe(&egress, judged(epoch, 0b101, 0b10)).await;
    let policy = rig.policy("stage").await;
    assert_eq!(
        (&policy["code"], &policy["probes"]),
        (&json!(0b101), &json!(0b10))
    );
    rig.observe(&egress, degraded()).await;
    assert_eq!(rig.policy("stage").await["code"], 0b111);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingress_that_takes_signals_gets_the_same_policy_in_band() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("evidence", true)).await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    rig.register_with(&ingress, 2, Some(socket.local_addr().unwrap()))
        .await;
    let assignment = rig.stream(&ingress).await.next_of("assignment").await;
    let mut key = [0; 16];
    hex::decode_to_slice(assignment["signal_key"].as_str().unwrap(), &mut key).unwrap();
    rig.observe(&egress, degraded()).await;
    // A datagram may be lost, so the signal is sent three times.
    for _ in 0..3 {
        let mut datagram = [0; 64];
        let length = tokio::time::timeout(TIMEOUT, socket.recv(&mut datagram))
            .await
            .unwrap()
            .unwrap();
        let signal = Signal::parse(&datagram[..length], &Key::from_bytes(key)).unwrap();
        assert_eq!((signal.epoch, signal.code.0), (2, 0b11));
        assert_eq!(
            json!(u16::from(signal.flow)),
            assignment["sends"][0]["number"]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_choice_stays_until_it_is_released() {
    let rig = Rig::new().await;
    let [_, egress] = rig.two_nodes(3, flow("evidence", true)).await;
    let fixed = rig.put("/v1/policies/stage", json!({ "code": 0b10 })).await;
    assert_eq!(
        (fixed.status, &fixed.body["epoch"], &fixed.body["reason"]),
        (StatusCode::OK, &json!(2), &json!("operator"))
    );
    assert_eq!(
        rig.put("/v1/policies/stage", json!({ "code": 0b10 }))
            .await
            .body["epoch"],
        2
    );
    rig.put("/v1/policies/stage", json!({ "code": 0b1000 }))
        .await
        .is_problem(422);
    rig.put("/v1/policies/none", json!({ "code": 1 }))
        .await
        .is_problem(404);
    rig.observe(&egress, degraded()).await;
    assert_eq!(rig.policy("stage").await["code"], 0b10);
    let released = rig.delete("/v1/policies/stage").await.body;
    assert_eq!(
        (&released["epoch"], &released["code"]),
        (&json!(3), &json!(0))
    );
    rig.observe(&egress, degraded()).await;
    assert_eq!(rig.policy("stage").await["code"], 0b111);
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_go_on_when_a_flow_is_made_again() {
    let rig = Rig::new().await;
    let [ingress, _] = rig.two_nodes(2, flow("replicate", true)).await;
    rig.put("/v1/policies/stage", json!({ "code": 0b1 })).await;
    rig.delete("/v1/flows/stage").await;
    let mut stream = rig.stream(&ingress).await;
    let before = stream.next_of("assignment").await;
    assert_eq!(before["sends"], json!([]));
    rig.post("/v1/flows", flow("replicate", true)).await;
    assert_eq!(rig.policy("stage").await["epoch"], 3);
    let after = stream.next_of("assignment").await;
    assert_eq!(after["sends"][0]["policy"]["epoch"], 3);
    assert!(after["revision"].as_u64() > before["revision"].as_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_follows_the_paths_that_both_nodes_have() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(0, flow("replicate", false)).await;
    rig.receive(&egress).await;
    assert_eq!(rig.policy("stage").await["code"], 0);
    rig.register(&ingress, 3).await;
    rig.register(&egress, 2).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b11)
        .await;
    rig.register(&ingress, 1).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_without_trigger_waits_for_its_egress() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    let code = async || rig.policy("stage").await["code"].clone();
    let assigned = rig.stream(&egress).await.next_of("assignment").await["revision"]
        .as_u64()
        .unwrap();
    assert_eq!(code().await, 0);
    // An operator's choice is applied immediately, even before the egress is ready.
    for wanted in [0b1, 0b10] {
        rig.put("/v1/policies/stage", json!({ "code": wanted }))
            .await;
        assert_eq!(code().await, wanted);
    }
    rig.delete("/v1/policies/stage").await;
    assert_eq!(code().await, 0);
    let mut at_ingress = rig.stream(&ingress).await;
    at_ingress.next_of("assignment").await;
    rig.receive_by(&egress, assigned).await;
    assert_eq!(at_ingress.next_of("policy").await["code"], 0b11);
    let events = rig.get("/v1/events?limit=1000").await.body;
    let is_ready = |event: &&Value| event["kind"] == "flow_received";
    assert_eq!(
        events["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(is_ready)
            .count(),
        1
    );
    // The egress keeps deduplicating regardless of the policy.
    rig.put("/v1/policies/stage", json!({ "code": 0b1 })).await;
    rig.delete("/v1/policies/stage").await;
    assert_eq!(code().await, 0b11);
    assert_eq!(
        rig.put("/v1/flows/stage", flow("evidence", false))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(code().await, 0b11);

    // A new flow of the same name waits for its own assignment.
    rig.delete("/v1/flows/stage").await;
    rig.post("/v1/flows", flow("replicate", false)).await;
    rig.receive_by(&egress, assigned).await;
    rig.receive_by(&egress, assigned).await;
    assert_eq!(code().await, 0);
    rig.receive(&egress).await;
    rig.until(async || code().await == 0b11).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirected_flow_leaves_a_path_that_goes_down() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("redirect", true)).await;
    let health = |up: bool| {
        json!({ "revision": 0, "paths": [
        { "number": 1, "up": up, "rtt_us": 10_000, "dropped_by_device": 0 },
        { "number": 2, "up": true, "rtt_us": 30_000, "dropped_by_device": 0 }] })
    };
    rig.report(&ingress, health(true)).await;
    rig.observe(&egress, degraded()).await;
    assert_eq!(rig.policy("stage").await["code"], 0b1);
    rig.report(&ingress, health(false)).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b10)
        .await;
    assert_eq!(rig.policy("stage").await["reason"], "redirected");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_not_read_skips_what_was_overtaken() {
    let rig = Rig::new().await;
    let [ingress, _] = rig.two_nodes(2, flow("replicate", true)).await;
    let mut stream = rig.stream(&ingress).await;
    stream.next_of("assignment").await;
    for code in (0..40).map(|round| 1 + round % 2) {
        assert_eq!(
            rig.put("/v1/policies/stage", json!({ "code": code }))
                .await
                .status,
            StatusCode::OK
        );
    }
    let policy = stream.next_of("policy").await;
    assert_eq!(policy, rig.policy("stage").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_decide_at_once_and_no_epoch_comes_twice() {
    let rig = Rig::new().await;
    rig.two_nodes(3, flow("replicate", true)).await;
    let puts = (0..30).map(|round| {
        let body = json!({ "code": 1 + round % 7 });
        async { rig.put("/v1/policies/stage", body).await }
    });
    for answer in futures_util::future::join_all(puts).await {
        assert!(
            matches!(answer.status.as_u16(), 200 | 409),
            "{}",
            answer.body
        );
    }
    let events = rig.get("/v1/events?limit=1000").await.body;
    let messages = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["message"].as_str().unwrap());
    let epochs: Vec<u32> = messages
        .filter_map(|m| m.split_once("epoch ")?.1.split(',').next()?.parse().ok())
        .collect();
    assert!(
        !epochs.is_empty() && epochs.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{epochs:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nodes_tell_becomes_events() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("evidence", true)).await;
    rig.observe(
        &ingress,
        json!({ "kind": "applied", "flow": "stage", "epoch": 1, "code": 0, "by_signal": true }),
    )
    .await;
    rig.observe(
        &ingress,
        json!({ "kind": "signal_refused", "reason": "tag", "count": 3 }),
    )
    .await;
    rig.observe(
        &egress,
        json!({ "kind": "latent_error", "flow": "stage", "path": 2 }),
    )
    .await;
    let answer = rig
        .call(
            Caller::Operator(&rig.admin),
            "GET",
            "/v1/events?limit=1000",
            None,
        )
        .await;
    for kind in ["policy_applied", "signal_refused", "latent_error"] {
        let events = answer.body["items"].as_array().unwrap();
        assert!(
            events
                .iter()
                .any(|event| event["kind"] == kind && event["tenant"] == "acme"),
            "{kind}"
        );
    }
}

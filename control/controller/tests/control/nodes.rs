//! Enrolment and registration of nodes, and the restriction of nodes to statements about
//! themselves.

use crate::rig::{Answer, Caller, Identity, Rig, config, flow, key_and_request};
use axum::http::StatusCode;
use futures_util::future::join_all;
use hawser_controller::Server;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_enrols_once_however_many_try() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let token = rig.invite("in").await;
    let tries = join_all((0..12).map(|_| async {
        let body = json!({ "token": token, "csr": key_and_request().1 });
        rig.call(Caller::Anonymous, "POST", "/v1/enrol", Some(body))
            .await
    }))
    .await;
    let statuses = |wanted| {
        tries
            .iter()
            .filter(|answer| answer.status == wanted)
            .count()
    };
    assert_eq!(
        (
            statuses(StatusCode::CREATED),
            statuses(StatusCode::FORBIDDEN)
        ),
        (1, 11)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_are_not_good_any_more_or_never_were_are_refused() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let csr = key_and_request().1;
    let enrol = async |token: &str| {
        rig.call(
            Caller::Anonymous,
            "POST",
            "/v1/enrol",
            Some(json!({ "token": token, "csr": csr })),
        )
        .await
    };
    let token = rig.invite("in").await;
    let parts: Vec<&str> = token.split('.').collect();
    let other = "0".repeat(64);
    for wrong in [
        "",
        "hawser1",
        &format!("hawser1.in.{}.{other}.{}", parts[2], parts[4]),
        &format!("hawser1.in.{}.{}.{other}", parts[2], parts[3]),
        &format!("hawser1.in.0000000000000000.{}.{}", parts[3], parts[4]),
        &format!("hawser1.out.{}.{}.{}", parts[2], parts[3], parts[4]),
        &format!("hawser1.in/../out.{}.{}.{}", parts[2], parts[3], parts[4]),
    ] {
        enrol(wrong).await.is_problem(403);
    }
    let answer = rig
        .call(
            Caller::Anonymous,
            "POST",
            "/v1/enrol",
            Some(json!({ "token": token, "csr": "none" })),
        )
        .await;
    answer.is_problem(422);

    let short = rig
        .post(
            "/v1/nodes/in/enrolment",
            json!({ "tenant": "acme", "valid_s": 1 }),
        )
        .await
        .body;
    let short = short["token"].as_str().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1001)).await;
    enrol(short).await.is_problem(403);
    assert_eq!(
        enrol(&token).await.status,
        StatusCode::CREATED,
        "failures did not use it up"
    );
    let deleted = rig.invite("gone").await;
    rig.delete("/v1/nodes/gone").await;
    enrol(&deleted).await.is_problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_an_old_token_of_a_node_does_not_silence_it() {
    let rig = Rig::with(|config| {
        config.limits.node_requests_per_s = 0.001;
        config.limits.failures_per_minute = 1e6;
    })
    .await;
    rig.tenant("acme").await;
    let used = rig.invite("in").await;
    let (key, csr) = key_and_request();
    let enrol = async |token: &str, csr: &str| {
        let body = json!({ "token": token, "csr": csr });
        rig.call(Caller::Anonymous, "POST", "/v1/enrol", Some(body))
            .await
    };
    let node = Identity::of(&key, &enrol(&used, &csr).await.body);
    let short = json!({ "tenant": "acme", "valid_s": 1 });
    let expired = rig.post("/v1/nodes/in/enrolment", short).await.body;
    let expired = expired["token"].as_str().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1001)).await;

    let other = key_and_request().1;
    for _ in 0..30 {
        enrol(expired, "no request").await.is_problem(403);
    }
    let attacks = join_all((0..30).map(|_| enrol(&used, &other))).await;
    let too_many = |answer: &Answer| answer.status == StatusCode::TOO_MANY_REQUESTS;
    assert!(attacks.iter().any(too_many));
    let report = rig.report(&node, json!({ "revision": 0 })).await;
    assert_eq!(report.status, StatusCode::NO_CONTENT, "{}", report.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_can_only_report_about_itself() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("evidence", true)).await;
    let registration = json!({ "version": "1", "paths": [] });
    for (method, what, body) in [
        ("PUT", "registration", Some(registration)),
        ("GET", "stream", None),
        ("POST", "reports", Some(json!({ "revision": 0 }))),
        (
            "POST",
            "certificate",
            Some(json!({ "csr": key_and_request().1 })),
        ),
    ] {
        let path = format!("/v1/nodes/in/{what}");
        rig.call(Caller::Node(&egress), method, &path, body.clone())
            .await
            .is_problem(403);
        rig.call(Caller::Anonymous, method, &path, body)
            .await
            .is_problem(401);
    }
    rig.call(Caller::Node(&ingress), "GET", "/v1/flows", None)
        .await
        .is_problem(401);

    // Only the egress judges and only the ingress counts sent packets; neither may report about
    // other flows.
    let degraded = |flow: &str| {
        json!({ "revision": 0, "observations":
        [{ "kind": "degraded", "flow": flow, "since_due_us": 1, "silent_us": 1 }] })
    };
    rig.report(&ingress, degraded("stage"))
        .await
        .is_problem(403);
    let sends = json!({ "revision": 0, "sends":
        [{ "flow": "stage", "epoch": 1, "code": 0, "packets": 0, "bytes": 0, "sent_bytes": 0 }] });
    rig.report(&egress, sends).await.is_problem(403);
    let third = rig.enrol("third").await;
    rig.report(&third, degraded("stage")).await.is_problem(403);
    assert_eq!(
        rig.report(&egress, degraded("deleted")).await.status,
        StatusCode::NO_CONTENT
    );
    assert_eq!(rig.policy("stage").await["epoch"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_ends_what_is_open_at_once() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    let mut stream = rig.stream(&node).await;
    stream.next_of("assignment").await;
    assert_eq!(
        rig.delete("/v1/nodes/in/certificate").await.status,
        StatusCode::NO_CONTENT
    );
    stream.next_of("end").await;
    assert!(stream.next().await.is_none());
    rig.report(&node, json!({ "revision": 0 }))
        .await
        .is_problem(403);
    let again = rig.enrol("in").await;
    rig.report(&node, json!({ "revision": 0 }))
        .await
        .is_problem(403);
    assert_eq!(
        rig.report(&again, json!({ "revision": 0 })).await.status,
        StatusCode::NO_CONTENT
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_as_good_as_the_one_before() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    let (key, csr) = key_and_request();
    let answer = rig
        .call(
            Caller::Node(&node),
            "POST",
            "/v1/nodes/in/certificate",
            Some(json!({ "csr": csr })),
        )
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let renewed = Identity::of(&key, &answer.body);
    for identity in [&node, &renewed] {
        let me = rig
            .call(Caller::Node(identity), "GET", "/v1/me", None)
            .await;
        assert_eq!(
            (me.body["name"].as_str(), me.body["tenant"].as_str()),
            (Some("in"), Some("acme"))
        );
    }
    rig.delete("/v1/nodes/in/certificate").await;
    for identity in [&node, &renewed] {
        rig.call(Caller::Node(identity), "GET", "/v1/me", None)
            .await
            .is_problem(403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_report_is_not_alive() {
    let rig = Rig::with(|config| {
        config.nodes.lease_s = 5;
        config.nodes.report_every_ms = 500;
    })
    .await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    rig.register(&node, 2).await;
    assert_eq!(rig.get("/v1/nodes/in").await.body["alive"], true);
    rig.until(async || rig.get("/v1/nodes/in").await.body["alive"] == false)
        .await;
    let has_event = async || {
        rig.get("/v1/events")
            .await
            .body
            .to_string()
            .contains("node_lost")
    };
    rig.until(has_event).await;
    rig.report(
        &node,
        json!({ "revision": 0, "paths":
        [{ "number": 1, "up": true, "rtt_us": 900, "dropped_by_device": 0 }] }),
    )
    .await;
    assert_eq!(rig.get("/v1/nodes/in").await.body["alive"], true);
    let paths = rig.get("/v1/paths").await.body;
    assert_eq!(paths["items"][0]["health"]["rtt_us"], 900);
    assert!(paths["items"][1]["health"].is_null());
    assert_eq!(
        rig.get("/v1/reports/in").await.body["report"]["paths"][0]["rtt_us"],
        900
    );
}

impl Rig {
    /// Uses a token with that key.
    async fn use_token(&self, token: &str, csr: &str) -> Answer {
        self.call(
            Caller::Anonymous,
            "POST",
            "/v1/enrol",
            Some(json!({ "token": token, "csr": csr })),
        )
        .await
    }

    async fn is_in(&self, node: &Identity) -> bool {
        self.call(Caller::Node(node), "GET", "/v1/me", None)
            .await
            .status
            == StatusCode::OK
    }
}

#[tokio::test]
async fn a_tenant_has_a_limited_number_of_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&directory);
    config.limits.tenant_nodes = 2;
    let server = Server::start(config).await.unwrap();
    let rig = Rig::of(server, directory).await;
    rig.tenant("acme").await;
    rig.tenant("zenith").await;
    let invite = async |node: &str, tenant: &str| {
        let path = format!("/v1/nodes/{node}/enrolment");
        rig.post(&path, json!({ "tenant": tenant })).await
    };
    for node in ["a", "b", "a"] {
        assert_eq!(invite(node, "acme").await.status, StatusCode::CREATED);
    }
    let refused = invite("c", "acme").await;
    refused.is_problem(409);
    assert!(refused.body["detail"].to_string().contains("tenant_nodes"));
    assert_eq!(invite("c", "zenith").await.status, StatusCode::CREATED);
    rig.delete("/v1/nodes/b").await;
    assert_eq!(invite("d", "acme").await.status, StatusCode::CREATED);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_with_its_node() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    rig.tenant("zenith").await;
    let old = rig.invite("in").await;
    assert_eq!(
        rig.delete("/v1/nodes/in").await.status,
        StatusCode::NO_CONTENT
    );
    let theirs = rig
        .post("/v1/nodes/in/enrolment", json!({ "tenant": "zenith" }))
        .await
        .body;
    let (key, csr) = key_and_request();
    rig.use_token(&old, &csr).await.is_problem(403);
    let answer = rig.use_token(theirs["token"].as_str().unwrap(), &csr).await;
    let me = rig
        .call(
            Caller::Node(&Identity::of(&key, &answer.body)),
            "GET",
            "/v1/me",
            None,
        )
        .await;
    assert_eq!(me.body["tenant"], "zenith");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_node_withdraws_its_tokens() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    rig.enrol("in").await;
    let unused = rig.invite("in").await;
    assert_eq!(
        rig.delete("/v1/nodes/in/certificate").await.status,
        StatusCode::NO_CONTENT
    );
    rig.use_token(&unused, &key_and_request().1)
        .await
        .is_problem(403);
    assert_eq!(rig.get("/v1/enrolments").await.body["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_listed_without_their_secrets_and_withdrawn() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    rig.tenant("zenith").await;
    let tokens = [
        rig.invite("in").await,
        rig.invite("in").await,
        rig.invite("out").await,
    ];
    rig.post("/v1/nodes/theirs/enrolment", json!({ "tenant": "zenith" }))
        .await;
    let (_, csr) = key_and_request();
    assert_eq!(
        rig.use_token(&tokens[0], &csr).await.status,
        StatusCode::CREATED
    );

    let (mut listed, mut path) = (vec![], "/v1/enrolments?limit=1".to_owned());
    loop {
        let page = rig.get(&path).await.body;
        for token in &tokens {
            assert!(
                !page.to_string().contains(token.split('.').nth(3).unwrap()),
                "no secrets: {page}"
            );
        }
        listed.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/enrolments?limit=1&after={next}");
    }
    let nodes: Vec<&str> = listed
        .iter()
        .map(|token| token["node"].as_str().unwrap())
        .collect();
    assert_eq!(nodes, ["in", "in", "out", "theirs"]);
    let id = |token: &str| token.split('.').nth(2).unwrap().to_owned();
    let used: Vec<&Value> = listed
        .iter()
        .filter(|token| !token["used_unix_ms"].is_null())
        .collect();
    assert!(
        used.len() == 1 && used[0]["id"] == id(&tokens[0]),
        "{listed:?}"
    );

    let reader = rig
        .post(
            "/v1/tokens",
            json!({ "name": "r", "scope": "operate", "tenant": "zenith" }),
        )
        .await;
    let reader = Caller::Operator(reader.body["secret"].as_str().unwrap());
    let seen = rig
        .call(reader.clone(), "GET", "/v1/enrolments", None)
        .await
        .body;
    assert_eq!(seen["items"].as_array().unwrap().len(), 1, "{seen}");
    let place = format!("/v1/nodes/in/enrolment/{}", id(&tokens[1]));
    rig.call(reader, "DELETE", &place, None)
        .await
        .is_problem(404);
    assert_eq!(rig.delete(&place).await.status, StatusCode::NO_CONTENT);
    rig.delete(&place).await.is_problem(404);
    rig.use_token(&tokens[1], &csr).await.is_problem(403);
    assert_eq!(
        rig.use_token(&tokens[2], &csr).await.status,
        StatusCode::CREATED,
        "others are still good"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_given_again_to_the_same_key_alone() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let token = rig.invite("in").await;
    let (key, csr) = key_and_request();
    let first = rig.use_token(&token, &csr).await;
    let again = rig.use_token(&token, &csr).await;
    assert_eq!(
        (again.status, &again.body),
        (StatusCode::CREATED, &first.body)
    );
    rig.use_token(&token, &key_and_request().1)
        .await
        .is_problem(403);
    let node = Identity::of(&key, &again.body);
    assert!(rig.is_in(&node).await);
    // The certificate of the first response is no longer accepted, so the response is not repeated.
    rig.enrol("in").await;
    rig.use_token(&token, &csr).await.is_problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_nodes_token_is_not_used_and_does_not_evict() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    let token = rig.invite("in").await;
    let (_, csr) = key_and_request();
    let wrong = json!({ "token": token, "csr": csr, "node": "out" });
    let answer = rig
        .call(Caller::Anonymous, "POST", "/v1/enrol", Some(wrong))
        .await;
    answer.is_problem(403);
    assert!(
        answer.body["detail"]
            .as_str()
            .unwrap()
            .contains("enrols in, not out"),
        "{}",
        answer.body
    );
    assert!(rig.is_in(&node).await, "its certificate is in force");
    let right = json!({ "token": token, "csr": csr, "node": "in" });
    let answer = rig
        .call(Caller::Anonymous, "POST", "/v1/enrol", Some(right))
        .await;
    assert_eq!(answer.status, StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_renewals_leave_the_certificate_in_force() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    for _ in 0..6 {
        let body = Some(json!({ "csr": key_and_request().1 }));
        let answer = rig
            .call(
                Caller::Node(&node),
                "POST",
                "/v1/nodes/in/certificate",
                body,
            )
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    }
    assert!(rig.is_in(&node).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_receives_every_flow_number_reports() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    let most = u64::MAX;
    let path = |number: u8| json!({ "number": number, "arrivals": most, "first": most, "only_copy": most, "missing": most });
    let paths: Vec<Value> = (1..=8).map(path).collect();
    let received =
        |number: u16| json!({ "flow": format!("{number:0>63}"), "packets": most, "paths": paths });
    let receives: Vec<Value> = (0..1024).map(received).collect();
    let judged = json!({ "kind": "judged", "flow": format!("{:0>63}", 1), "epoch": u32::MAX, "code": 255, "probes": 255,
        "probe_every": u16::MAX, "reason": "r".repeat(700) });
    let report =
        json!({ "revision": most, "receives": receives, "observations": vec![judged; 256] });
    assert!(
        report.to_string().len() > 1 << 20,
        "{}",
        report.to_string().len()
    );
    let answer = rig.report(&node, report).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    let kept = rig.get("/v1/reports/in").await.body;
    assert_eq!(kept["report"]["receives"].as_array().unwrap().len(), 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_bodies_must_be_small() {
    let rig = Rig::new().await;
    let body = json!({ "token": "t".repeat(20_000), "csr": "" });
    rig.call(Caller::Anonymous, "POST", "/v1/enrol", Some(body))
        .await
        .is_problem(413);
}

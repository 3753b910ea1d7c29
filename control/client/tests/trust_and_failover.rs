//! The client's trust in controllers, and its behaviour when a controller fails.

mod stand_in;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use hawser_client::{
    Controller, Error, Identity, NodeClient, NodeMessage, OperatorClient, enrol, enrol_in,
};
use hawser_model::access::{Certificate, Enrol};
use hawser_model::node::Report;
use stand_in::{Authority, Certified, unreachable_controller};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PROBLEM: &str = r#"{ "type": "about:blank", "title": "Not Found", "status": 404,
    "detail": "There is no flow stage. Create it first." }"#;

/// Enrols any client as `edge-1`.
fn enrolling(authority: &Arc<Authority>, answered_authority: String) -> Router {
    let authority = Arc::clone(authority);
    let sign = move |Json(enrol): Json<Enrol>| async move {
        Json(Certificate {
            node: "edge-1".parse().unwrap(),
            certificate: authority.sign(&enrol.csr, "edge-1"),
            authority: answered_authority,
            renew_unix_ms: 0,
            expires_unix_ms: 0,
        })
    };
    let report = |Extension(Certified(is_certified)): Extension<Certified>,
                  Json(_): Json<Report>| async move {
        if is_certified {
            StatusCode::NO_CONTENT
        } else {
            StatusCode::UNAUTHORIZED
        }
    };
    Router::new()
        .route("/v1/enrol", post(sign))
        .route("/v1/nodes/edge-1/reports", post(report))
}

async fn enrolled(authority: &Arc<Authority>) -> Identity {
    let controller = authority
        .serve(enrolling(authority, authority.pem.clone()))
        .await;
    enrol(&[controller], &authority.token()).await.unwrap()
}

#[tokio::test]
async fn a_token_and_a_certificate_are_all_that_a_node_needs() {
    let authority = Arc::new(Authority::new());
    let controller = authority
        .serve(enrolling(&authority, authority.pem.clone()))
        .await;
    let folder = tempfile::tempdir().unwrap();

    let identity = enrol(std::slice::from_ref(&controller), &authority.token())
        .await
        .unwrap();
    identity.store(folder.path()).unwrap();
    let client = NodeClient::new(&[controller], &Identity::load(folder.path()).unwrap()).unwrap();

    assert_eq!(client.node().as_str(), "edge-1");
    client.report(&Report::default()).await.unwrap();
}

#[tokio::test]
async fn a_controller_of_another_authority_learns_no_token() {
    let (ours, other) = (Authority::new(), Arc::new(Authority::new()));
    let asked = Arc::new(AtomicU32::new(0));
    let count = |State(asked): State<Arc<AtomicU32>>| async move {
        asked.fetch_add(1, Ordering::Relaxed);
    };
    let controller = other
        .serve(
            Router::new()
                .route("/v1/enrol", post(count))
                .with_state(Arc::clone(&asked)),
        )
        .await;

    let error = enrol(&[controller], &ours.token()).await.unwrap_err();

    assert!(
        matches!(&error, Error::Unreachable(reason) if reason.contains("certificate")),
        "{error}"
    );
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

/// Returns why an operator who trusts this authority cannot use this controller.
async fn refusal(controller: Controller, authority_pem: &str) -> String {
    let client = OperatorClient::new(&[controller], authority_pem, "token").unwrap();
    client.me().await.unwrap_err().to_string()
}

/// Returns a server that answers with these bytes and closes the connection.
async fn answering(bytes: &'static [u8]) -> Controller {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(bytes).await;
        }
    });
    format!("https://{address}").parse().unwrap()
}

#[tokio::test]
async fn a_server_that_cannot_be_trusted_is_described_in_words() {
    let (ours, other) = (Authority::new(), Authority::new());
    let controller = ours.serve(Router::new()).await;
    let port = controller.address().unwrap().port();
    let named: Controller = format!("https://localhost:{port}").parse().unwrap();
    for (controller, pem, words) in [
        (controller, &other.pem, "not of the authority"),
        (named, &ours.pem, "not for this name"),
        (
            answering(b"HTTP/1.1 400 Bad Request\r\n").await,
            &ours.pem,
            "no TLS is spoken",
        ),
        (answering(b"").await, &ours.pem, "was cut"),
    ] {
        let refusal = refusal(controller, pem).await;
        assert!(refusal.contains(words), "{refusal}");
    }
}

#[tokio::test]
async fn an_authority_that_the_token_does_not_name_is_not_taken_over() {
    let authority = Arc::new(Authority::new());
    let controller = authority
        .serve(enrolling(&authority, Authority::new().pem))
        .await;
    let error = enrol(&[controller], &authority.token()).await.unwrap_err();
    assert!(matches!(error, Error::Credentials { .. }), "{error}");
}

/// A controller that records the keys it was asked to certify, and succeeds only the second time.
async fn forgetful(
    authority: &Arc<Authority>,
    path: &str,
) -> (Controller, Arc<Mutex<Vec<Vec<u8>>>>) {
    let keys: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let (asked, signing) = (Arc::clone(&keys), Arc::clone(authority));
    let sign = move |Json(body): Json<serde_json::Value>| async move {
        let csr = body["csr"].as_str().unwrap();
        let mut asked = asked.lock().unwrap();
        asked.push(stand_in::key_of(csr));
        if asked.len() == 1 {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        let certificate = Certificate {
            node: "edge-1".parse().unwrap(),
            certificate: signing.sign(csr, "edge-1"),
            authority: signing.pem.clone(),
            renew_unix_ms: 0,
            expires_unix_ms: 0,
        };
        Json(certificate).into_response()
    };
    (
        authority.serve(Router::new().route(path, post(sign))).await,
        keys,
    )
}

#[tokio::test]
async fn a_node_asks_with_one_key_until_it_has_a_certificate() {
    let authority = Arc::new(Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let node = "edge-1".parse().unwrap();

    let (controller, keys) = forgetful(&authority, "/v1/enrol").await;
    let token = authority.token();
    let enrolled = async || {
        enrol_in(
            folder.path(),
            &node,
            std::slice::from_ref(&controller),
            &token,
        )
        .await
    };
    assert_eq!(enrolled().await.unwrap_err().status(), Some(500));
    enrolled().await.unwrap();
    let first = keys.lock().unwrap().clone();
    assert_eq!(first[0], first[1]);

    let (controller, keys) = forgetful(&authority, "/v1/nodes/edge-1/certificate").await;
    let client = NodeClient::new(&[controller], &Identity::load(folder.path()).unwrap()).unwrap();
    assert_eq!(
        client.renew(folder.path()).await.unwrap_err().status(),
        Some(500)
    );
    client.renew(folder.path()).await.unwrap();
    let renewed = keys.lock().unwrap().clone();
    assert_eq!(renewed[0], renewed[1]);
    assert_ne!(
        renewed[0], first[0],
        "each certificate has a key of its own"
    );
    Identity::load(folder.path()).unwrap();
}

#[tokio::test]
async fn nothing_is_asked_for_another_node_or_without_a_folder() {
    let authority = Arc::new(Authority::new());
    let (controller, keys) = forgetful(&authority, "/v1/enrol").await;
    let (controllers, token) = ([controller], authority.token());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();

    let other = "edge-2".parse().unwrap();
    let error = enrol_in(folder.path(), &other, &controllers, &token)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::AnotherNode { .. }), "{error}");
    let node = "edge-1".parse().unwrap();
    let error = enrol_in(&file.join("folder"), &node, &controllers, &token)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    let client = NodeClient::new(&controllers, &enrolled(&authority).await).unwrap();
    let error = client.renew(&file.join("folder")).await.unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    assert!(keys.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_next_controller_is_asked_when_one_is_away_or_says_so() {
    let authority = Authority::new();
    let unavailable = Router::new().fallback(|| async { StatusCode::SERVICE_UNAVAILABLE });
    let available = Router::new().route(
        "/v1/flows/stage",
        get(|| async { ([(CONTENT_TYPE, "application/json")], "{}") }),
    );
    let unreachable = unreachable_controller().await;
    let controllers = [
        unreachable.clone(),
        authority.serve(unavailable).await,
        authority.serve(available).await,
    ];

    let client = OperatorClient::new(&controllers, &authority.pem, "token").unwrap();
    let error = client.flow(&"stage".parse().unwrap()).await.unwrap_err();
    assert!(
        matches!(error, Error::Answer { .. }),
        "the last one answers, though not with a flow: {error}"
    );

    let client = OperatorClient::new(&controllers[..1], &authority.pem, "token").unwrap();
    let error = client.flow(&"stage".parse().unwrap()).await.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains(&unreachable.to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn a_request_that_was_taken_is_not_sent_again() {
    let authority = Authority::new();
    let asked = Arc::new(AtomicU32::new(0));
    let fail = |State(asked): State<Arc<AtomicU32>>| async move {
        asked.fetch_add(1, Ordering::Relaxed);
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let router = Router::new().fallback(fail).with_state(Arc::clone(&asked));
    let controllers = [
        authority.serve(router.clone()).await,
        authority.serve(router).await,
    ];
    let client = OperatorClient::new(&controllers, &authority.pem, "token").unwrap();
    let error = client
        .delete_flow(&"stage".parse().unwrap())
        .await
        .unwrap_err();
    assert_eq!(
        (error.status(), asked.load(Ordering::Relaxed)),
        (Some(500), 1)
    );
}

#[tokio::test]
async fn a_rejection_is_reported_in_the_controllers_words() {
    let authority = Authority::new();
    let reject = || async {
        (
            StatusCode::NOT_FOUND,
            [(CONTENT_TYPE, "application/problem+json")],
            PROBLEM,
        )
            .into_response()
    };
    let controller = authority.serve(Router::new().fallback(reject)).await;
    let client = OperatorClient::new(&[controller], &authority.pem, "token").unwrap();
    let error = client.flow(&"stage".parse().unwrap()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "There is no flow stage. Create it first."
    );
    assert_eq!((error.status(), error.is_transient()), (Some(404), false));
}

#[tokio::test]
async fn a_list_is_fetched_page_by_page() {
    let authority = Authority::new();
    let page = |uri: axum::http::Uri| async move {
        let body = match uri.query().unwrap().contains("after=a%2Fb") {
            false => r#"{ "items": [{ "name": "acme" }], "next": "a/b" }"#,
            true => r#"{ "items": [{ "name": "zenith" }], "next": null }"#,
        };
        ([(CONTENT_TYPE, "application/json")], body)
    };
    let controller = authority
        .serve(Router::new().route("/v1/tenants", get(page)))
        .await;
    let client = OperatorClient::new(&[controller], &authority.pem, "token").unwrap();
    let names: Vec<_> = client
        .tenants()
        .all()
        .await
        .unwrap()
        .into_iter()
        .map(|tenant| tenant.name)
        .collect();
    assert_eq!(names, ["acme".parse().unwrap(), "zenith".parse().unwrap()]);
}

#[tokio::test]
async fn a_stream_gives_its_events_and_ends() {
    const EVENTS: &str = concat!(
        "event: ping\ndata: {}\n\n",
        "event: assignment\ndata: {\"revision\":7,\"report_every_ms\":5000,\"reconnect_within_ms\":0,\"signal_key\":null,",
        "\"sends\":[],\"receives\":[],\"keys\":{},\"discovery\":{}}\n\n",
        "event: end\ndata: the node has opened another stream\n\n",
    );
    let authority = Arc::new(Authority::new());
    let identity = enrolled(&authority).await;
    let stream = get(|| async { ([(CONTENT_TYPE, "text/event-stream")], EVENTS) });
    let controller = authority
        .serve(Router::new().route("/v1/nodes/edge-1/stream", stream))
        .await;
    let client = NodeClient::new(&[controller], &identity).unwrap();

    let mut stream = client.stream().await.unwrap();

    assert_eq!(stream.next().await.unwrap(), Some(NodeMessage::Ping));
    let Some(NodeMessage::Assignment(assignment)) = stream.next().await.unwrap() else {
        panic!()
    };
    assert_eq!(assignment.revision, 7);
    let error = stream.next().await.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("another stream"),
        "{error}"
    );
}

#[tokio::test]
async fn a_stream_of_events_knows_its_position_without_one() {
    const EVENTS: &str = "event: ping\nid: 41\ndata: {}\n\n";
    let authority = Arc::new(Authority::new());
    let stream = get(|| async { ([(CONTENT_TYPE, "text/event-stream")], EVENTS) });
    let controller = authority
        .serve(Router::new().route("/v1/events/stream", stream))
        .await;
    let client = OperatorClient::new(&[controller], &authority.pem, "secret").unwrap();
    let mut stream = client.follow_events(None).await.unwrap();
    assert_eq!(stream.position(), None);
    assert!(stream.next().await.unwrap().is_none());
    assert_eq!(stream.position(), Some(41));
}

//! For any bytes, the events of a controller and the certificate of a node are read without a panic.

#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use crate::Identity;
use crate::stream::Events;
use futures_util::stream;
use hawser_model::node::Assignment;
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use reqwest::{Body, Response};
use std::io;

const STREAM: &str = ":comment\n\nevent: ping\ndata\n\nid: 7\r\nevent: assignment\r\n\
    data: {\"revision\":7,\ndata: \"report_every_ms\":1000,\"sends\":[],\"receives\":[]}\nretry: 10\n\n\
    data: last\n\n";

/// Reads the events of a response that arrives in chunks.
fn events(chunks: Vec<Vec<u8>>) -> Vec<(String, String)> {
    let chunks = stream::iter(chunks.into_iter().map(Ok::<_, io::Error>));
    let response = axum::http::Response::new(Body::wrap_stream(chunks));
    let controller = "https://controller:14750".parse().unwrap();
    let mut events = Events::new(Response::from(response), controller);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut read = Vec::new();
        while let Ok(Some(event)) = events.next().await {
            let _ = events.parse::<Assignment>(&event);
            read.push((event.event, event.data));
        }
        read
    })
}

/// Splits bytes into chunks of a length.
fn in_chunks(bytes: &[u8], length: usize) -> Vec<Vec<u8>> {
    bytes.chunks(length).map(Vec::from).collect()
}

fn pem() -> [String; 2] {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "edge-1");
    let certificate = params.self_signed(&key).unwrap();
    [key.serialize_pem(), certificate.pem()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_chunks_are_rejected_or_events(chunks in vec(vec(any::<u8>(), 0..60), 0..10)) {
        let bytes: usize = chunks.iter().map(Vec::len).sum();
        prop_assert!(events(chunks).len() <= bytes);
    }

    #[test]
    fn any_lines_are_rejected_or_events(
        lines in vec(select(vec!["data:", "data: {}", "event: a", "id", ":", "", "\r", "retry: -1", "\u{e9}"]), 0..30),
        length in 1..20usize,
    ) {
        let text = lines.join("\n");
        let whole = events(vec![text.clone().into_bytes()]);
        prop_assert_eq!(events(in_chunks(text.as_bytes(), length)), whole);
    }

    #[test]
    fn changed_events_are_rejected_or_events(changes in changes(), length in 1..40usize) {
        let bytes = changed(STREAM.as_bytes(), &changes);
        prop_assert!(events(in_chunks(&bytes, length)).len() <= bytes.len());
    }

    #[test]
    fn a_changed_certificate_is_rejected_or_names_a_node(changes in changes()) {
        let [key, certificate] = pem();
        let certificate = changed(certificate.as_bytes(), &changes);
        let certificate = String::from_utf8_lossy(&certificate).into_owned();
        if let Ok(identity) = Identity::new(key, certificate, String::new()) {
            prop_assert!(!identity.node.as_str().is_empty());
            let _ = identity.renew_at();
        }
    }
}

#[test]
fn the_unchanged_stream_and_certificate_are_accepted() {
    let read = events(in_chunks(STREAM.as_bytes(), 7));
    let kinds: Vec<&str> = read.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["ping", "assignment", "message"]);
    let [key, certificate] = pem();
    assert!(Identity::new(key, certificate, String::new()).is_ok());
}

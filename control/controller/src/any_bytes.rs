//! For any bytes, the records of the store and certificates of peers are read without a panic, and
//! what is accepted is written as it was read.

#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use crate::authority::{Presented, SigningRequest};
use crate::record::{
    AliveRecord, AuditRecord, EventRecord, FlowRecord, HealthRecord, NodeRecord, NumberRecord,
    SeenRecord, SourceRecord, TokenRecord, TrackRecord, TunnelClientRecord, TunnelRecord, emit,
    parse,
};
use hawser_model::tunnel::TunnelSettings;
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use serde::de::DeserializeOwned;

const NODE: &str = r#"{"tenant":"t1","signal_key":"00ff","certificates":[{"serial":"0a",
    "expires_unix_ms":18446744073709551615}],"enrolments":[{"id":"01","secret_sha256":"02",
    "created_unix_ms":1,"expires_unix_ms":2,"used":{"at_unix_ms":3,"key_sha256":"04","serial":"05",
    "certificate":"PEM","renew_unix_ms":6}}],"changed_in":7}"#;
const NUMBER: &str = r#"{"flow":"f1","epoch":4294967295}"#;
const ALIVE: &str = r#"{"controller":"https://c:1","since_unix_ms":1}"#;
const SEEN: &str = r#"{"at_unix_ms":1,"is_alive":true}"#;
const TUNNEL: &str =
    r#"{"addresses":["[fd77::1]:1"],"clients":1,"max_clients":4294967295,"draining":false}"#;
const EVENT: &str = r#"{"at_unix_ms":1,"tenant":"t1","node":null,"flow":"f1","kind":"path_silent",
    "message":"text"}"#;

const TRACK: &str = r#"{"track":{"name":"t1","tenant":"t2","writers":["n1"],"readers":["n2"]},"number":1,
    "secret":"00ff"}"#;

const TUNNEL_CLIENT: &str = r#"{"at_unix_ms":1,"report":{"accepts_settings":true,"applied":1,
    "refused":{"revision":2,"reason":"text"}}}"#;
const TUNNEL_SETTINGS: &str = r#"{"uplink":[{"interface":"wwan*","cost":255,"mtu_bytes":1400}],
    "search_every_s":600}"#;

const SOURCE: &str =
    r#"{"controller":"c","address":"[fd77::1]:1","viewers":1,"max_viewers":4294967295}"#;

const RECORDS: [&str; 8] = [NODE, NUMBER, ALIVE, SEEN, TUNNEL, EVENT, TRACK, SOURCE];

/// Checks a record of one type; returns whether it is accepted.
fn check<T: Serialize + DeserializeOwned>(json: &[u8]) -> bool {
    let Some(record) = parse::<T>("kind/name", json) else {
        return false;
    };
    let written = emit(&record);
    let again: T = parse("kind/name", &written).expect("a written record can be read");
    assert_eq!(emit(&again), written);
    true
}

fn check_all(json: &[u8]) -> bool {
    [
        check::<NodeRecord>(json),
        check::<FlowRecord>(json),
        check::<NumberRecord>(json),
        check::<TokenRecord>(json),
        check::<TrackRecord>(json),
        check::<SourceRecord>(json),
        check::<AliveRecord>(json),
        check::<SeenRecord>(json),
        check::<HealthRecord>(json),
        check::<TunnelRecord>(json),
        check::<EventRecord>(json),
        check::<AuditRecord>(json),
    ]
    .contains(&true)
}

/// As [`check_all`], for records that have few or no fields that must be given, so that others would
/// pass for them.
fn check_lenient(client: &[u8], settings: &[u8]) -> [bool; 2] {
    [
        check::<TunnelClientRecord>(client),
        check::<TunnelSettings>(settings),
    ]
}

fn node(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "edge-1");
    assert!(params.clone().self_signed(key).is_ok());
    params
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes_are_rejected_or_a_record(bytes in vec(any::<u8>(), 0..200)) {
        check_all(&bytes);
        prop_assert!(Presented::of(&CertificateDer::from(bytes.clone())).is_none());
        prop_assert!(SigningRequest::parse(&String::from_utf8_lossy(&bytes)).is_err());
    }

    #[test]
    fn a_changed_record_is_rejected_or_a_record(
        valid in select(RECORDS.to_vec()),
        changes in changes(),
    ) {
        check_all(&changed(valid.as_bytes(), &changes));
        let of = |valid: &str| changed(valid.as_bytes(), &changes);
        check_lenient(&of(TUNNEL_CLIENT), &of(TUNNEL_SETTINGS));
    }

    #[test]
    fn a_changed_certificate_is_rejected_or_names_a_node(changes in changes()) {
        let key = KeyPair::generate().unwrap();
        let certificate = node(&key).self_signed(&key).unwrap();
        let bytes = changed(certificate.der(), &changes);
        if let Some(presented) = Presented::of(&CertificateDer::from(bytes.clone())) {
            prop_assert!(presented.serial.len() <= 2 * bytes.len());
        }
    }

    #[test]
    fn a_changed_signing_request_is_rejected_or_signed_by_its_key(changes in changes()) {
        let key = KeyPair::generate().unwrap();
        let request = node(&key).serialize_request(&key).unwrap().pem().unwrap();
        let bytes = changed(request.as_bytes(), &changes);
        if let Ok(request) = SigningRequest::parse(&String::from_utf8_lossy(&bytes)) {
            prop_assert_eq!(request.key_sha256().len(), 64);
        }
    }
}

#[test]
fn the_unchanged_records_are_accepted() {
    for record in RECORDS {
        assert!(check_all(record.as_bytes()), "{record}");
    }
    let lenient = check_lenient(TUNNEL_CLIENT.as_bytes(), TUNNEL_SETTINGS.as_bytes());
    assert_eq!(lenient, [true; 2]);
}

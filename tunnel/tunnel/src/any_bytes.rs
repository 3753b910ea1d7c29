//! For any bytes, the files of an earlier process and the certificate of a peer are read without a
//! panic.

use crate::config::Registration;
use crate::mutation::{changed, changes};
use crate::server::allowlist::Allowlist;
use crate::status::Status;
use crate::tls::Peer;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rustls::pki_types::CertificateDer;
use std::fs;

const STATUS: &str = r#"{"name":"car-1","role":"client","version":"0.1.0","pid":4294967295,
    "written_unix_ms":18446744073709551615,"draining":false,"addresses":[],"sessions":[],
    "uplinks":[],"memory_bytes":0,"tables_restored":0,"device_restored":0,"deviations":[],
    "dns_restored":0,"uplink_domains":[],"damaged_files":[],
    "dropped":{"spoofed":1}}"#;

const CLIENTS: &str = r#"[{"name":"c1","certificates":["0a"],"addresses":["fd77::2"]}]"#;

/// Reads a file as a status and as a list of clients; returns which of them is valid.
fn read(text: &[u8]) -> [bool; 2] {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file.json");
    fs::write(&file, text).unwrap();
    let status = Status::read(&file);
    if let Ok(status) = &status {
        let written = serde_json::to_vec(status).unwrap();
        let again: Status = serde_json::from_slice(&written).unwrap();
        assert_eq!(serde_json::to_vec(&again).unwrap(), written);
    }
    let allowlist = Allowlist::read(&Registration {
        controllers: Vec::new(),
        addresses: Vec::new(),
        clients_file: file,
    });
    let damaged = allowlist.unwrap().damaged_files().len();
    [status.is_ok(), damaged == 0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes_are_rejected(bytes in vec(any::<u8>(), 1..200)) {
        prop_assert!(!read(&bytes)[0]);
        prop_assert!(Peer::of(&CertificateDer::from(bytes)).is_err());
    }

    #[test]
    fn a_changed_file_is_rejected_or_read(
        valid in select(vec![STATUS, CLIENTS]),
        changes in changes(),
    ) {
        read(&changed(valid.as_bytes(), &changes));
    }

    #[test]
    fn a_changed_certificate_is_rejected_or_has_an_identity(changes in changes()) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "car-1");
        let certificate = params.self_signed(&key).unwrap();
        prop_assert_eq!(Peer::of(certificate.der()).unwrap().name, "car-1");
        let bytes = changed(certificate.der(), &changes);
        if let Ok(peer) = Peer::of(&CertificateDer::from(bytes.clone())) {
            prop_assert!(peer.serial.len() <= 2 * bytes.len());
        }
    }
}

#[test]
fn the_unchanged_files_are_read() {
    assert_eq!(read(STATUS.as_bytes()), [true, false]);
    assert_eq!(read(CLIENTS.as_bytes()), [false, true]);
}

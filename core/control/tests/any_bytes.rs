//! For any JSON and any text, messages, names, prefixes and tokens are parsed without a panic, and
//! what is accepted is within its bounds and is written as it was read.

#[path = "../../wire/tests/support/mutation.rs"]
mod mutation;

use hawser_control::access::{Enrol, EnrolmentToken};
use hawser_control::node::{Assignment, Registration, Report};
use hawser_control::resource::{Flow, Policy};
use hawser_control::tunnel::{Admitted, ServerReport, Servers};
use hawser_control::{Name, Prefix};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

const REGISTRATION: &str = r#"{"version":"0.1.0","paths":[{"number":1,"interface":"wwan0",
    "local":"10.0.0.1","remote":"fd77::2"}],"signals":"10.0.0.1:14749"}"#;

// Numbers with a fraction are left out: serde_json may read one that it wrote as its neighbour.
const ASSIGNMENT: &str = r#"{"revision":7,"report_every_ms":1000,"signal_key":"00ff","sends":[
    {"flow":"f1","number":3,"peer":"edge-2","select":{"destination":"203.0.113.0/24","protocol":17,
    "source_ports":[1,65535]},"policy":{"flow":"f1","epoch":9,"code":3,"probes":4,"probe_every":32,
    "reason":"judged","decided_unix_ms":1700000000000}}],"receives":[{"flow":"f2","number":1023,
    "peer":"edge-3","mode":"evidence","pruning":{},"paths":7,"trigger":{"select":{"destination":
    "::/0"}},"policy":{"flow":"f2","epoch":1,"code":0,"probes":0,"probe_every":0,
    "reason":"operator","decided_unix_ms":0}}]}"#;

const REPORT: &str = r#"{"revision":7,"paths":[{"number":1,"up":true,"rtt_us":30000,
    "dropped_by_device":0}],"sends":[{"flow":"f1","epoch":9,"code":3,"packets":1,"bytes":2,
    "sent_bytes":4}],"receives":[{"flow":"f2","packets":5,"paths":[{"number":2,"arrivals":5,
    "first":4,"only_copy":1,"missing":0}]}],"observations":[{"kind":"judged","flow":"f2","epoch":1,
    "code":3,"probes":4,"probe_every":32,"reason":"why"},{"kind":"path_silent","flow":"f2",
    "path":2},{"kind":"signal_refused","reason":"tag","count":18446744073709551615}]}"#;

const SERVERS: &str = r#"{"ask_every_ms":1000,"servers":[{"name":"s1","tenant":"t","addresses":
    ["192.0.2.1:443","[2001:db8::1]:443"],"clients":1,"max_clients":0,"draining":false}],
    "addresses":["10.77.0.2"]}"#;

const ADMITTED: &str = r#"{"report_every_ms":1000,"digest":"d","clients":[{"name":"c1",
    "certificates":["0a"],"addresses":["fd77::2"]}]}"#;

const SERVER_REPORT: &str = r#"{"addresses":["192.0.2.1:443"],"clients":1,"max_clients":2,
    "draining":true,"known":null}"#;

/// Checks a message of one type; returns whether it is accepted.
fn check<T>(json: &[u8]) -> Result<bool, TestCaseError>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let Ok(message) = serde_json::from_slice::<T>(json) else {
        return Ok(false);
    };
    let again = serde_json::to_vec(&message).expect("a message can be written");
    let again: T = serde_json::from_slice(&again).expect("a written message can be read");
    prop_assert_eq!(again, message);
    Ok(true)
}

fn check_all(json: &[u8]) -> Result<(), TestCaseError> {
    check::<Registration>(json)?;
    check::<Assignment>(json)?;
    check::<Report>(json)?;
    check::<Policy>(json)?;
    check::<Servers>(json)?;
    check::<Admitted>(json)?;
    check::<ServerReport>(json)?;
    let _ = serde_json::from_slice::<Flow>(json);
    let _ = serde_json::from_slice::<Enrol>(json);
    if let Ok(servers) = serde_json::from_slice::<Servers>(json) {
        prop_assert!(servers.servers.iter().all(|server| server.load() >= 0.0));
    }
    Ok(())
}

fn check_text(text: &str) -> Result<(), TestCaseError> {
    if let Ok(name) = text.parse::<Name>() {
        prop_assert_eq!(name.as_str(), text);
        prop_assert!((1..=63).contains(&text.len()));
        prop_assert!(
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        );
        prop_assert!(check::<Name>(&serde_json::to_vec(&name).unwrap())?);
    }
    if let Ok(prefix) = text.parse::<Prefix>() {
        let longest = if prefix.is_ipv4() { 32 } else { 128 };
        prop_assert!(prefix.length() <= longest);
        prop_assert_eq!(prefix.to_string().parse::<Prefix>(), Ok(prefix));
        for number in [0, 1, u64::from(u32::MAX), u64::MAX] {
            if let Some(address) = prefix.address(number) {
                prop_assert!(prefix.contains(address));
                prop_assert_eq!(prefix.number(address), Some(number));
            }
        }
        prop_assert!(prefix.address(0).is_some());
    }
    if let Ok(token) = text.parse::<EnrolmentToken>() {
        prop_assert_eq!(token.text(), text.trim());
        prop_assert!(token.text().parse() == Ok(token));
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_written_as_they_were_read(bytes in vec(any::<u8>(), 0..300)) {
        check_all(&bytes)?;
        check_text(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn a_changed_message_is_rejected_or_written_as_it_was_read(
        valid in select(vec![
            REGISTRATION, ASSIGNMENT, REPORT, SERVERS, ADMITTED, SERVER_REPORT,
        ]),
        changes in changes(),
    ) {
        check_all(&changed(valid.as_bytes(), &changes))?;
    }

    #[test]
    fn deeply_nested_messages_are_rejected(depth in 0..20_000usize, is_object: bool) {
        let open = if is_object { "{\"paths\":" } else { "[" };
        let json = open.repeat(depth);
        prop_assert!(serde_json::from_str::<Report>(&json).is_err());
        prop_assert!(serde_json::from_str::<Assignment>(&json).is_err());
    }

    #[test]
    fn a_text_of_few_characters_is_rejected_or_within_bounds(
        text in vec(select(vec!['a', 'Z', '0', '9', '-', '.', ':', '/', ' ', '\u{e9}']), 0..70),
    ) {
        check_text(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn a_prefix_of_any_address_and_length_is_rejected_or_within_bounds(
        v4: [u8; 4],
        v6: [u8; 16],
        length in 0..140u32,
        zeros in 0..17usize,
    ) {
        let (mut v4, mut v6) = (v4, v6);
        v4[4_usize.saturating_sub(zeros)..].fill(0);
        v6[16_usize.saturating_sub(zeros)..].fill(0);
        check_text(&format!("{}/{length}", std::net::Ipv4Addr::from(v4)))?;
        check_text(&format!("{}/{length}", std::net::Ipv6Addr::from(v6)))?;
    }

    #[test]
    fn a_changed_token_is_rejected_or_written_as_it_was_read(changes in changes()) {
        let valid = format!("hawser1.edge-1.0123456789abcdef.{}.{}", "5e".repeat(32), "A0".repeat(32));
        let bytes = changed(valid.as_bytes(), &changes);
        check_text(&String::from_utf8_lossy(&bytes))?;
    }
}

#[test]
fn the_unchanged_messages_are_accepted() -> Result<(), TestCaseError> {
    assert!(check::<Registration>(REGISTRATION.as_bytes())?);
    assert!(check::<Assignment>(ASSIGNMENT.as_bytes())?);
    assert!(check::<Report>(REPORT.as_bytes())?);
    assert!(check::<Servers>(SERVERS.as_bytes())?);
    assert!(check::<Admitted>(ADMITTED.as_bytes())?);
    assert!(check::<ServerReport>(SERVER_REPORT.as_bytes())?);
    Ok(())
}

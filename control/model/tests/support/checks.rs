//! The checks of messages and texts, for the property tests and for `fuzz/`.

use hawser_model::access::{Enrol, EnrolmentToken};
use hawser_model::node::{Assignment, Registration, Report};
use hawser_model::pair::NodeKeys;
use hawser_model::resource::{Flow, Policy};
use hawser_model::tunnel::{Admitted, ServerReport, Servers};
use hawser_model::{Name, Prefix};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

pub(crate) const REGISTRATION: &str = r#"{"version":"0.1.0","paths":[{"number":1,"interface":"wwan0",
    "local":"10.0.0.1","remote":"fd77::2","discovered":true}],"uplinks":[{"interface":"wwan0",
    "address":"10.0.0.1"}],"signals":"10.0.0.1:14749"}"#;

// Numbers with a fraction are left out: serde_json may read one that it wrote as its neighbour.
pub(crate) const ASSIGNMENT: &str = r#"{"revision":7,"report_every_ms":1000,"reconnect_within_ms":0,"keys":{},
    "signal_key":"00ff","sends":[
    {"flow":"f1","number":3,"peer":"edge-2","select":{"destination":"203.0.113.0/24","protocol":17,
    "source_ports":[1,65535]},"policy":{"flow":"f1","epoch":9,"code":3,"probes":4,"probe_every":32,
    "reason":"judged","decided_unix_ms":1700000000000}}],"receives":[{"flow":"f2","number":1023,
    "peer":"edge-3","mode":"evidence","pruning":{},"paths":7,"trigger":{"select":{"destination":
    "::/0"}},"policy":{"flow":"f2","epoch":1,"code":0,"probes":0,"probe_every":0,
    "reason":"operator","decided_unix_ms":0}}],"discovery":{"paths":[{"number":1,"peer":"edge-2",
    "interface":"wwan0","local":"10.0.0.1","remote":"10.0.0.2"}],"candidates":[{"peer":"edge-2",
    "interface":"eth0","local":"::1","remote":"::2"}]}}"#;

pub(crate) const REPORT: &str = r#"{"revision":7,"reached":[{"local":"10.0.0.1","remote":"10.0.0.2"}],"paths":[{"number":1,"up":true,"rtt_us":30000,
    "dropped_by_device":0}],"sends":[{"flow":"f1","epoch":9,"code":3,"packets":1,"bytes":2,
    "sent_bytes":4}],"receives":[{"flow":"f2","packets":5,"paths":[{"number":2,"arrivals":5,
    "first":4,"only_copy":1,"missing":0}]}],"observations":[{"kind":"judged","flow":"f2","epoch":1,
    "code":3,"probes":4,"probe_every":32,"reason":"why"},{"kind":"path_silent","flow":"f2",
    "path":2},{"kind":"signal_refused","reason":"tag","count":18446744073709551615}]}"#;

pub(crate) const SERVERS: &str = r#"{"ask_every_ms":1000,"servers":[{"name":"s1","tenant":"t","addresses":
    ["192.0.2.1:443","[2001:db8::1]:443"],"clients":1,"max_clients":0,"draining":false}],
    "addresses":["10.77.0.2"]}"#;

pub(crate) const ADMITTED: &str = r#"{"report_every_ms":1000,"digest":"d","clients":[{"name":"c1",
    "certificates":["0a"],"addresses":["fd77::2"]}]}"#;

pub(crate) const SERVER_REPORT: &str = r#"{"addresses":["192.0.2.1:443"],"clients":1,"max_clients":2,
    "draining":true,"known":null}"#;

pub(crate) const NODE_KEYS: &str = r#"{"keys":[{"generation":1700000000,"public":"5e"}],"pairs":[{"node":
    "edge-2","by_hand":false,"accepts":[{"own":1700000000,"peer":18446744073709551615}],"sends":null}]}"#;

/// A valid message of each type.
pub(crate) const MESSAGES: [&str; 7] = [
    NODE_KEYS,
    REGISTRATION,
    ASSIGNMENT,
    REPORT,
    SERVERS,
    ADMITTED,
    SERVER_REPORT,
];

/// Checks a message of one type; returns whether it is accepted.
pub(crate) fn check<T>(json: &[u8]) -> bool
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let Ok(message) = serde_json::from_slice::<T>(json) else {
        return false;
    };
    let again = serde_json::to_vec(&message).expect("a message can be written");
    let again: T = serde_json::from_slice(&again).expect("a written message can be read");
    assert_eq!(again, message);
    true
}

pub(crate) fn check_all(json: &[u8]) {
    check::<Registration>(json);
    check::<NodeKeys>(json);
    check::<Assignment>(json);
    check::<Report>(json);
    check::<Policy>(json);
    check::<Servers>(json);
    check::<Admitted>(json);
    check::<ServerReport>(json);
    let _ = serde_json::from_slice::<Flow>(json);
    let _ = serde_json::from_slice::<Enrol>(json);
    if let Ok(servers) = serde_json::from_slice::<Servers>(json) {
        assert!(servers.servers.iter().all(|server| server.load() >= 0.0));
    }
}

pub(crate) fn check_text(text: &str) {
    if let Ok(name) = text.parse::<Name>() {
        assert_eq!(name.as_str(), text);
        assert!((1..=63).contains(&text.len()));
        assert!(
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        );
        assert!(check::<Name>(&serde_json::to_vec(&name).unwrap()));
    }
    if let Ok(prefix) = text.parse::<Prefix>() {
        let longest = if prefix.is_ipv4() { 32 } else { 128 };
        assert!(prefix.length() <= longest);
        assert_eq!(prefix.to_string().parse::<Prefix>(), Ok(prefix));
        for number in [0, 1, u64::from(u32::MAX), u64::MAX] {
            if let Some(address) = prefix.address(number) {
                assert!(prefix.contains(address));
                assert_eq!(prefix.number(address), Some(number));
            }
        }
        assert!(prefix.address(0).is_some());
    }
    if let Ok(token) = text.parse::<EnrolmentToken>() {
        assert_eq!(token.text(), text.trim());
        assert!(token.text().parse() == Ok(token));
    }
}

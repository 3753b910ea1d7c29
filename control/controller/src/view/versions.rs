//! Controllers that are one version apart share a store: `testdata/store-1.json` has a record of each
//! kind as the first version writes it, and `store-2.json` those that were added. A later version adds a
//! file and keeps the others.

#[path = "../../../model/tests/support/later.rs"]
mod later;

use super::*;
use crate::record::{emit, key};
use later::with_unknown_fields;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

fn first() -> Map<String, Value> {
    serde_json::from_str(include_str!("../../testdata/store-1.json")).unwrap()
}

/// Returns the records of all versions.
fn golden() -> Map<String, Value> {
    let added: Map<String, Value> =
        serde_json::from_str(include_str!("../../testdata/store-2.json")).unwrap();
    first().into_iter().chain(added).collect()
}

fn entry(key: &str, value: &Value, revision: Revision) -> Entry {
    Entry {
        key: key.into(),
        value: emit(value).into(),
        revision,
    }
}

fn entries(records: &Map<String, Value>) -> Vec<Entry> {
    let records = records.iter().zip(1..);
    records
        .map(|((key, value), revision)| entry(key, value, revision))
        .collect()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Returns the entries that the view would write, by key.
fn content(view: &View) -> Vec<(String, Option<Entry>)> {
    let keys = golden();
    let keys = keys.keys().map(|key| Arc::<str>::from(&**key));
    keys.map(|key| (key.to_string(), view.entry(&key)))
        .collect()
}

/// Keys of records of which there is an earlier value.
fn rewritten() -> Vec<String> {
    let view = View::of(entries(&golden()));
    let known = content(&view).into_iter();
    known
        .filter_map(|(key, entry)| entry.map(|_| key))
        .collect()
}

#[test]
fn a_store_of_the_first_version_is_read_and_every_kind_of_record_is_in_it() {
    let golden = golden();
    let view = View::of(entries(&golden));
    assert_eq!(view.fault(), None);
    for kind in [
        key::TENANT,
        key::NODE,
        key::REGISTRATION,
        key::ALIVE,
        key::SEEN,
        key::HEALTH,
        key::KEYS,
        key::PATHS,
        key::NUMBER,
        key::FLOW,
        key::POLICY,
        key::TRACK,
        key::TOKEN,
        key::TOKEN_USE,
        key::EVENT,
        key::AUDIT,
        key::OBSERVATION,
        key::TUNNEL,
        key::TUNNEL_CLIENT,
        key::TUNNEL_TENANT,
        key::TUNNEL_NODE,
        key::INNER,
        key::TRIMMED,
        key::RUN_TIME,
        key::SETTINGS,
        key::FORMAT,
        key::INCARNATION,
    ] {
        assert!(golden.keys().any(|key| key.starts_with(kind)), "{kind}");
    }
    assert_eq!(
        (
            view.events.iter().count(),
            view.audit.iter().count(),
            view.observations.len()
        ),
        (1, 1, 1)
    );
    let assignment = view.assignment(&name("edge-1"), 5000);
    assert_eq!(
        (assignment.sends.len(), assignment.incarnation),
        (1, Some("5e".repeat(16)))
    );
}

#[test]
fn records_of_earlier_versions_are_written_with_the_same_fields() {
    let golden = golden();
    let view = View::of(entries(&golden));
    for (key, entry) in content(&view) {
        let Some(entry) = entry else { continue };
        let written: Value = serde_json::from_slice(&entry.value).unwrap();
        assert_eq!(written, golden[&key], "{key}");
    }
}

#[test]
fn fields_that_a_later_version_added_to_records_are_ignored() {
    let later = golden();
    let later = later.iter();
    let later = later.map(|(key, value)| (key.clone(), with_unknown_fields(value)));
    let view = View::of(entries(&later.collect()));
    assert_eq!(view.fault(), None);
    let known = View::of(entries(&golden()));
    for node in ["edge-1", "edge-2"] {
        let assignment = |view: &View| view.assignment(&name(node), 5000);
        assert_eq!(assignment(&view), assignment(&known));
    }
}

#[test]
fn a_record_that_was_never_read_is_not_taken_for_deleted() {
    let node = name("edge-1");
    for key in [
        "flow/stage",
        "policy/stage",
        "number/edge-1/0003",
        "node/edge-1",
    ] {
        let mut records = golden();
        records[key] = json!({ "mode": "telepathy" });
        let view = View::of(entries(&records));
        assert_eq!(view.missing_for_node(&node).as_deref(), Some(key));
        assert_eq!(view.missing_record(), Some(key));
        assert!(view.fault().unwrap().contains(key));
    }
    let mut records = golden();
    records["keys/edge-1"] = json!(1.5);
    let view = View::of(entries(&records));
    // Its peer would take it for a node that was revoked.
    let missing = view.missing_for_node(&name("edge-2"));
    assert_eq!(missing.as_deref(), Some("keys/edge-1"));
    let mut records = golden();
    records["registration/edge-2"] = json!(1.5);
    let view = View::of(entries(&records));
    assert_eq!(
        view.missing_for_flow(&name("stage")).unwrap(),
        "registration/edge-2"
    );
    let mut records = golden();
    records["event/1700000000000-0a"] = json!(1);
    let view = View::of(entries(&records));
    assert_eq!(
        view.missing_record(),
        None,
        "no decision depends on an event"
    );
    assert!(view.fault().unwrap().contains("event/"));
}

#[test]
fn a_store_of_a_later_format_is_a_fault_that_names_the_version() {
    let mut records = golden();
    records["format"] = json!({ "format": 2, "version": "9.1.0" });
    let fault = View::of(entries(&records)).fault().unwrap();
    assert!(fault.contains("9.1.0"), "{fault}");
}

proptest! {
    #[test]
    fn a_record_that_cannot_be_read_keeps_its_earlier_value(key in select(rewritten()), is_missed: bool) {
        let mut view = View::of(entries(&golden()));
        let before = content(&view);
        let unreadable = entry(&key, &json!(1.5), 100);
        if is_missed {
            let mut all = entries(&golden());
            all.retain(|entry| *entry.key != *key);
            all.push(unreadable);
            view = view.followed_by(all);
        } else {
            prop_assert_eq!(view.apply(Change::Put(unreadable)), Touched::Nothing);
        }
        prop_assert_eq!(content(&view), before);
        prop_assert_eq!(view.missing_record(), None);
        prop_assert!(view.fault().unwrap().contains(&key));
        prop_assert_eq!(view.unreadable_len(), 1);
        view.apply(Change::Put(entry(&key, &golden()[&key], 101)));
        prop_assert_eq!(view.fault(), None);
        view.apply(Change::Put(entry(&key, &json!(1.5), 102)));
        view.apply(Change::Delete { key: key.as_str().into(), revision: 103 });
        prop_assert_eq!(view.fault(), None);
        prop_assert!(view.entry(&key.as_str().into()).is_none());
    }
}

//! `testdata/store.json` has a record of each kind. If a change breaks these tests, stores of before
//! cannot be read: it needs another number of the format ([`crate::format`]).

use super::*;
use crate::record::{AuditRecord, EventRecord, FormatRecord, emit, key};
use proptest::prelude::*;
use proptest::sample::select;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

fn golden() -> Map<String, Value> {
    serde_json::from_str(include_str!("../../testdata/store.json")).unwrap()
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

/// Reads a record and writes it again.
fn again<T: DeserializeOwned + Serialize>(record: &Value) -> Value {
    let record: T = serde_json::from_value(record.clone()).unwrap();
    serde_json::to_value(record).unwrap()
}

fn read_and_write(key: &str, record: &Value) -> Value {
    match key::split(key).map_or(key, |(kind, _)| kind) {
        key::TENANT => again::<Tenant>(record),
        key::NODE => again::<NodeRecord>(record),
        key::REGISTRATION => again::<Registration>(record),
        key::ALIVE => again::<AliveRecord>(record),
        key::SEEN => again::<SeenRecord>(record),
        key::HEALTH => again::<HealthRecord>(record),
        key::KEYS => again::<KeysRecord>(record),
        key::PATHS => again::<PathsRecord>(record),
        key::NUMBER => again::<NumberRecord>(record),
        key::FLOW => again::<FlowRecord>(record),
        key::POLICY => again::<Policy>(record),
        key::TRACK => again::<TrackRecord>(record),
        key::SOURCE => again::<SourceRecord>(record),
        key::TOKEN => again::<TokenRecord>(record),
        key::TOKEN_USE => again::<TokenUseRecord>(record),
        key::EVENT => again::<EventRecord>(record),
        key::AUDIT => again::<AuditRecord>(record),
        key::TUNNEL => again::<TunnelRecord>(record),
        key::TUNNEL_CLIENT => again::<TunnelClientRecord>(record),
        key::TUNNEL_SETTINGS => again::<TunnelSettings>(record),
        key::INNER => again::<Name>(record),
        key::INCARNATION => again::<String>(record),
        key::FORMAT => again::<FormatRecord>(record),
        key::RUN_TIME => again::<RunTime>(record),
        _ => record.clone(),
    }
}

#[test]
fn every_kind_of_record_is_read() {
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
        key::SOURCE,
        key::TOKEN,
        key::TOKEN_USE,
        key::EVENT,
        key::AUDIT,
        key::OBSERVATION,
        key::TUNNEL,
        key::TUNNEL_CLIENT,
        key::TUNNEL_SETTINGS,
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
    let assignment = view.assignment(&"edge-1".parse().unwrap(), 5000);
    assert_eq!(
        (assignment.sends.len(), assignment.incarnation),
        (1, Some("5e".repeat(16)))
    );
}

#[test]
fn records_are_written_with_the_same_fields() {
    for (key, record) in golden() {
        assert_eq!(read_and_write(&key, &record), record, "{key}");
    }
}

/// Keys of records that are parsed when they are read.
fn parsed() -> Vec<String> {
    let keys = golden();
    let keys = keys.keys().filter(|key| {
        *key != key::FORMAT && *key != key::AUTHORITY && !key.starts_with(key::OBSERVATION)
    });
    keys.cloned().collect()
}

proptest! {
    #[test]
    fn a_record_that_cannot_be_read_is_a_fault_and_changes_nothing(key in select(parsed())) {
        let node = "edge-1".parse().unwrap();
        let mut view = View::of(entries(&golden()));
        let before = view.assignment(&node, 5000);
        let damaged = entry(&key, &json!(1.5), 100);
        prop_assert_eq!(view.apply(Change::Put(damaged.clone())), Touched::Nothing);
        let is_informative = INFORMATIVE.iter().any(|kind| key.starts_with(kind));
        let is_said = |view: &View| match view.fault() {
            Some(fault) => fault.contains(&key) && !is_informative,
            None => is_informative,
        };
        prop_assert_eq!((is_said(&view), view.damaged_len()), (true, 1));
        let after = Assignment { revision: before.revision, ..view.assignment(&node, 5000) };
        prop_assert_eq!(after, before);
        view.apply(Change::Put(entry(&key, &golden()[&key], 101)));
        prop_assert_eq!((view.fault(), view.damaged_len()), (None, 0));

        let mut all = entries(&golden());
        all.retain(|entry| *entry.key != *key);
        all.push(damaged);
        let mut view = View::of(all);
        prop_assert_eq!((is_said(&view), view.damaged_len()), (true, 1));
        view.apply(Change::Delete { key: key.as_str().into(), revision: 103 });
        prop_assert_eq!(view.fault(), None);
    }
}

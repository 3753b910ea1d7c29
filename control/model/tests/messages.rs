//! `testdata/messages.json` has the messages between controller, nodes and operators. If a change
//! breaks these tests, controllers and nodes of before do not understand it: it needs another version
//! of the interface ([`hawser_model::API`]).

use hawser_model::access::{Certificate, Enrol, Renew};
use hawser_model::answer::Problem;
use hawser_model::node::{Assignment, Registration, Report};
use hawser_model::pair::NodeKeys;
use hawser_model::resource::{Flow, Policy};
use hawser_model::strict;
use hawser_model::track::{TrackKey, TrackUse};
use hawser_model::tunnel::{Admitted, ClientReport, ServerReport, Servers};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

fn golden() -> Map<String, Value> {
    serde_json::from_str(include_str!("../testdata/messages.json")).unwrap()
}

/// Reads a message and writes it again.
fn again<T: DeserializeOwned + Serialize>(message: &Value) -> Value {
    let message: T = serde_json::from_value(message.clone()).unwrap();
    serde_json::to_value(message).unwrap()
}

fn read_and_write(kind: &str, message: &Value) -> Value {
    match kind {
        "registration" => again::<Registration>(message),
        "node_keys" => again::<NodeKeys>(message),
        "assignment" => again::<Assignment>(message),
        "policy" => again::<Policy>(message),
        "report" => again::<Report>(message),
        "enrol" => again::<Enrol>(message),
        "renew" => again::<Renew>(message),
        "certificate" => again::<Certificate>(message),
        "track_use" => again::<TrackUse>(message),
        "track_key" => again::<TrackKey>(message),
        "server_report" => again::<ServerReport>(message),
        "admitted" => again::<Admitted>(message),
        "client_report" => again::<ClientReport>(message),
        "servers" => again::<Servers>(message),
        "problem" => again::<Problem>(message),
        other => panic!("{other} is not tested"),
    }
}

/// Whether everything in `old` is in `new`, which may have more fields.
fn contains(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => old
            .iter()
            .all(|(key, old)| new.get(key).is_some_and(|new| contains(new, old))),
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| contains(new, old))
        }
        _ => new == old,
    }
}

#[test]
fn messages_are_written_with_the_same_fields() {
    for (kind, message) in golden() {
        let written = read_and_write(&kind, &message);
        assert!(contains(&written, &message), "{kind}: {written}");
    }
}

#[test]
fn an_operators_unknown_field_is_named() {
    let flow = |extra: &str| {
        format!(
            r#"{{ "name": "f", "tenant": "t", "ingress": "a", "egress": "b", "mode": "single",
                  "select": {{ "destination": "::/0" }}, "trigger": {{ "select": {{ "destination": "::/0" {extra} }} }} }}"#
        )
    };
    let read = |text: &str| strict::<Flow, _>(&mut serde_json::Deserializer::from_str(text));
    read(&flow("")).unwrap();
    let error = read(&flow(r#", "portz": 1"#)).unwrap_err().to_string();
    assert_eq!(error, "unknown field `trigger.select.portz`");
}

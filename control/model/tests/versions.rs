//! Controllers and nodes that are one version apart understand each other: `testdata/messages-1.json`
//! has the messages of the first version, and `messages-2.json` those that were added. A later version
//! adds a file and keeps the others.

#[path = "support/later.rs"]
mod later;

use hawser_model::access::{Certificate, Enrol, Renew};
use hawser_model::answer::Problem;
use hawser_model::node::{Assignment, Observation, Registration, Report};
use hawser_model::pair::NodeKeys;
use hawser_model::resource::{Cause, Flow, Policy};
use hawser_model::strict;
use hawser_model::track::TrackKey;
use hawser_model::tunnel::{Admitted, ClientReport, ServerReport, Servers};
use later::with_unknown_fields;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

fn golden() -> Map<String, Value> {
    serde_json::from_str(include_str!("../testdata/messages-1.json")).unwrap()
}

fn added() -> Map<String, Value> {
    serde_json::from_str(include_str!("../testdata/messages-2.json")).unwrap()
}

/// Returns the messages of all versions.
fn all() -> impl Iterator<Item = (String, Value)> {
    golden().into_iter().chain(added())
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
fn messages_of_earlier_versions_are_read_and_written_with_the_same_fields() {
    for (kind, message) in all() {
        let written = read_and_write(&kind, &message);
        assert!(contains(&written, &message), "{kind}: {written}");
    }
}

#[test]
fn fields_that_a_later_version_added_to_messages_are_ignored() {
    for (kind, message) in all() {
        let later = with_unknown_fields(&message);
        assert_ne!(later, message);
        let (later, known) = (
            read_and_write(&kind, &later),
            read_and_write(&kind, &message),
        );
        assert_eq!(later, known, "{kind}");
    }
}

#[test]
fn an_observation_of_a_later_version_does_not_spoil_the_report() {
    let mut report = golden()["report"].clone();
    report["observations"][1] = json!({ "kind": "measured", "flow": "f2", "figures": [1, 2] });
    let report: Report = serde_json::from_value(report).unwrap();
    assert_eq!(report.observations.len(), 9);
    assert_eq!(report.observations[1], Observation::Unknown);
}

#[test]
fn a_reason_of_a_later_version_does_not_spoil_the_policy() {
    let mut policy = golden()["policy"].clone();
    policy["reason"] = json!("forecast");
    let policy: Policy = serde_json::from_value(policy).unwrap();
    assert_eq!((policy.epoch, policy.reason), (9, Cause::Other));
}

#[test]
fn an_assignment_of_a_controller_without_public_keys_says_nothing_about_them() {
    let assignment: Assignment = serde_json::from_value(golden()["assignment"].clone()).unwrap();
    assert_eq!(assignment.keys, None);
}

#[test]
fn a_controller_without_settings_of_tunnels_says_nothing_about_them() {
    let servers: Servers = serde_json::from_value(golden()["servers"].clone()).unwrap();
    assert_eq!(servers.settings, None);
}

#[test]
fn a_setting_of_a_later_version_is_refused_and_the_servers_are_read() {
    let mut servers = added()["servers"].clone();
    servers["settings"]["settings"]["uplinks"][0]["priority"] = json!(1);
    let servers: Servers = serde_json::from_value(servers).unwrap();
    let error = servers.settings.unwrap().checked().unwrap_err();
    assert!(error.contains("`uplinks.0.priority`"), "{error}");
}

#[test]
fn a_flow_that_cannot_be_read_does_not_keep_a_node_from_the_others() {
    let mut assignment = golden()["assignment"].clone();
    let mut unknown = assignment["receives"][0].clone();
    unknown["flow"] = json!("f3");
    unknown["mode"] = json!("telepathy");
    assignment["receives"].as_array_mut().unwrap().push(unknown);
    let assignment: Assignment = serde_json::from_value(assignment).unwrap();
    assert_eq!((assignment.sends.len(), assignment.receives.len()), (1, 1));
    assert_eq!(assignment.unreadable, ["f3".parse().unwrap()]);
    let saved = serde_json::to_string(&assignment).unwrap();
    assert_eq!(
        serde_json::from_str::<Assignment>(&saved).unwrap(),
        assignment
    );
}

#[test]
fn an_unknown_field_in_input_of_an_operator_is_an_error_that_names_it() {
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

//! The OpenAPI document: what generators of clients need.

use hawser_controller::api;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Calls `examine` with every operation: method, path, and its description.
fn operations(document: &Value, mut examine: impl FnMut(&str, &str, &Map<String, Value>)) {
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method != "parameters" {
                examine(method, path, operation.as_object().unwrap());
            }
        }
    }
}

fn references<'a>(part: &'a Value, found: &mut BTreeSet<&'a str>) {
    match part {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|part| references(part, found));
        }
        Value::Array(parts) => parts.iter().for_each(|part| references(part, found)),
        _ => {}
    }
}

#[test]
fn every_operation_has_an_identifier_of_its_own_and_a_summary() {
    let document = api::document();
    let mut known = BTreeSet::new();
    operations(&document, |method, path, operation| {
        let id = operation["operationId"].as_str().unwrap();
        let is_word = id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert!(
            is_word && known.insert(id.to_owned()),
            "{method} {path}: {id}"
        );
        assert!(operation["summary"].is_string(), "{method} {path}");
    });
    assert!(known.contains("get_flow_status") && known.len() >= 50);
}

#[test]
fn every_reference_resolves() {
    let document = api::document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in &found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn every_response_has_a_schema_and_every_operation_its_errors() {
    let document = api::document();
    operations(&document, |method, path, operation| {
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses {
            let place = format!("{method} {path} {status}");
            let description = response["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty(), "{place}");
            let contents = response.get("content").and_then(Value::as_object);
            assert_eq!(contents.is_none(), status == "204", "{place}");
            for (kind, content) in contents.into_iter().flatten() {
                let schema = content["schema"].as_object();
                let schema = schema.unwrap_or_else(|| panic!("{place}: {kind}"));
                assert!(!schema.is_empty(), "{place}: {kind}");
                // The data of a stream is described too.
                assert!(
                    kind != "text/event-stream" || schema.contains_key("$ref"),
                    "{place}"
                );
                let is_error = !status.starts_with('2');
                assert_eq!(kind == "application/problem+json", is_error, "{place}");
            }
        }
        assert!(
            responses.keys().any(|status| status.starts_with('2')),
            "{method} {path}"
        );
        let has_errors = ["400", "401", "403", "503"]
            .iter()
            .all(|status| responses.contains_key(*status));
        assert!(has_errors || !path.starts_with("/v1/"), "{method} {path}");
        let takes_name = path.contains('{');
        assert!(
            !takes_name || !path.starts_with("/v1/flows") || responses.contains_key("404"),
            "{method} {path}"
        );
    });
}

#[test]
fn every_parameter_of_a_path_is_declared() {
    operations(&api::document(), |method, path, operation| {
        let declared: BTreeSet<&str> = operation
            .get("parameters")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let named: BTreeSet<&str> = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .collect();
        assert_eq!(declared, named, "{method} {path}");
    });
}

//! JSON as a later version may write it.

use serde_json::Value;

/// Adds fields that no version knows to every object.
pub(crate) fn with_unknown_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(key, value)| (key.clone(), with_unknown_fields(value)));
            let unknown = serde_json::json!({ "later": [1, { "more": null }] });
            fields.chain([("zz_later".to_owned(), unknown)]).collect()
        }
        Value::Array(values) => values.iter().map(with_unknown_fields).collect(),
        other => other.clone(),
    }
}

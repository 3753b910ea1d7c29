//! Changes of some fields of a resource: JSON merge patches (RFC 7396).

use super::extract;
use crate::controller::Controller;
use crate::refusal::Refusal;
use axum::extract::{FromRequest, Request};
use hawser_model::answer::MERGE_PATCH;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::ToSchema;

/// The fields to change, with their new values. `null` removes a field, which then has its default.
/// An object changes only the fields that it names. Fields that are not named stay.
#[derive(Debug, Clone, ToSchema)]
#[schema(value_type = Object)]
pub(crate) struct MergePatch(Map<String, Value>);

impl MergePatch {
    /// Returns the resource with the changes.
    ///
    /// # Errors
    /// If the result is not such a resource.
    pub(crate) fn applied_to<T: Serialize + DeserializeOwned>(
        &self,
        resource: &T,
    ) -> Result<T, Refusal> {
        let mut changed = serde_json::to_value(resource).expect("resources have text for keys");
        merge(&mut changed, Value::Object(self.0.clone()));
        let bytes = serde_json::to_vec(&changed).expect("it was JSON before");
        extract::strict(&bytes)
    }
}

impl FromRequest<Arc<Controller>> for MergePatch {
    type Rejection = Refusal;

    async fn from_request(request: Request, controller: &Arc<Controller>) -> Result<Self, Refusal> {
        let bytes = extract::declared(MERGE_PATCH, request, controller).await?;
        extract::parsed(&bytes, |input| hawser_model::named(input)).map(MergePatch)
    }
}

/// Applies a patch to a value (RFC 7396, section 2).
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            fields.shift_remove(&key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn patches_are_applied_as_in_rfc_7396() {
        for (original, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut changed = original.clone();
            merge(&mut changed, patch.clone());
            assert_eq!(changed, result, "{original} {patch}");
        }
    }
}

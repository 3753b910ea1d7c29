//! Input of operators, in which an unknown field is an error.
//!
//! An operator who mistypes a field has to be told.

use crate::named::Named;
use serde::de::{Deserialize, Deserializer, Error};

/// Deserializes a value, all of whose fields have to be known, as [`named`](crate::named).
///
/// ```
/// use hawser_model::resource::Tenant;
///
/// let text = r#"{ "name": "acme", "describtion": "roads" }"#;
/// let error = hawser_model::strict::<Tenant, _>(&mut serde_json::Deserializer::from_str(text));
/// assert_eq!(error.unwrap_err().to_string(), "unknown field `describtion`");
/// ```
///
/// # Errors
/// Returns the error of the deserializer, or one that names the first unknown field.
pub fn strict<'de, T, D>(input: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    match with_unknown(Named(input))? {
        (value, None) => Ok(value),
        (_, Some(path)) => Err(D::Error::custom(format_args!("unknown field `{path}`"))),
    }
}

/// Deserializes a value, and returns it with the first field that is not known, if there is one: its
/// path, such as `flows.0.modes`.
///
/// # Errors
/// Returns the error of the deserializer.
pub fn with_unknown<'de, T, D>(input: D) -> Result<(T, Option<String>), D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let mut unknown = None;
    let value = serde_ignored::deserialize(input, |path| {
        // `?` is the path's word for the content of an optional value.
        unknown.get_or_insert_with(|| path.to_string().replace("?.", ""));
    })?;
    Ok((value, unknown))
}

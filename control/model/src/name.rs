use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

/// The maximum length of a name, bytes.
const MAX_BYTES: usize = 63;

/// The name of a tenant, a node or a flow: 1 to 63 letters, digits and dashes, with no dash at
/// either end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$", example = "edge-1"))]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// The error for a text that is not a [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid name: use 1 to {MAX_BYTES} letters, digits and dashes, with no dash at either end"
)]
pub struct InvalidName(String);

impl Name {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        let is_word = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let fits = (1..=MAX_BYTES).contains(&text.len());
        if is_word && fits && !text.starts_with('-') && !text.ends_with('-') {
            Ok(Name(text))
        } else {
            Err(InvalidName(text.chars().take(MAX_BYTES + 1).collect()))
        }
    }
}

// Names compare like their texts, so a map keyed by name can be searched by text.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Name::try_from(text.to_owned())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_of_a_limited_alphabet() {
        for good in ["a", "edge-1", "9", &"x".repeat(63)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "a b", "a/b", "é", "..", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}

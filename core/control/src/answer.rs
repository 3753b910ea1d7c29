//! The shape of answers: lists in pages, and problems.

use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// In the list's order.
    pub items: Vec<T>,
    /// What to give as `after` for the next page; none: this is the last one.
    pub next: Option<String>,
}

/// Why a request was not granted (RFC 9457), `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The kind of problem; `about:blank`: the one that `title` names.
    #[serde(rename = "type", default = "Problem::blank")]
    pub kind: String,
    /// The kind of problem, for people.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// What is wrong this time and what to do about it.
    #[serde(default)]
    pub detail: String,
}

impl Problem {
    /// Nothing but the status is to be known.
    pub fn blank() -> String {
        "about:blank".to_owned()
    }
}

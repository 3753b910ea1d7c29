//! The shape of responses: pages of lists, and problems.

use serde::{Deserialize, Serialize};

/// The media type of a JSON merge patch (RFC 7396), the body of a PATCH request.
pub const MERGE_PATCH: &str = "application/merge-patch+json";

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// The value of `after` for the next page. `null` on the last page.
    pub next: Option<String>,
}

/// The version of a controller: `GET /v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Version {
    /// The version of the program.
    pub version: String,
    /// The name of the controller that answers.
    pub controller: String,
    /// The name of the controller that decides; `null` if none does at the moment.
    pub leader: Option<String>,
}

/// Why a request failed (RFC 9457), `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The kind of problem, a URI reference such as `/problems/in-use`, stable for programs.
    /// `about:blank` means that `status` describes it fully.
    #[serde(rename = "type", default = "Problem::blank")]
    pub kind: String,
    /// A summary of the kind of problem, for people.
    #[serde(default)]
    pub title: String,
    /// The HTTP status code.
    #[serde(default)]
    pub status: u16,
    /// The cause of this failure, and how to fix it, for people.
    #[serde(default)]
    pub detail: String,
}

impl Problem {
    /// Returns the `type` of problems that have no more specific kind than their HTTP status.
    pub fn blank() -> String {
        "about:blank".to_owned()
    }
}

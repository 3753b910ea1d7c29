//! The kinds of problems. Their names are stable for programs; docs/controller.md lists them.

use axum::http::StatusCode;

/// The kind of a problem: the last part of its `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Malformed,
    Unauthenticated,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    Conflict,
    AlreadyExists,
    InUse,
    Contended,
    Overlapping,
    PreconditionFailed,
    TooLarge,
    NotJson,
    Invalid,
    TooManyRequests,
    Unavailable,
    Internal,
}

impl Kind {
    #[cfg(test)]
    const ALL: [Kind; 18] = [
        Kind::Malformed,
        Kind::Unauthenticated,
        Kind::Forbidden,
        Kind::NotFound,
        Kind::MethodNotAllowed,
        Kind::RequestTimeout,
        Kind::Conflict,
        Kind::AlreadyExists,
        Kind::InUse,
        Kind::Contended,
        Kind::Overlapping,
        Kind::PreconditionFailed,
        Kind::TooLarge,
        Kind::NotJson,
        Kind::Invalid,
        Kind::TooManyRequests,
        Kind::Unavailable,
        Kind::Internal,
    ];

    /// Returns the kind of problems that have none more specific than their status.
    pub(crate) fn of(status: StatusCode) -> Kind {
        match status {
            StatusCode::BAD_REQUEST => Kind::Malformed,
            StatusCode::UNAUTHORIZED => Kind::Unauthenticated,
            StatusCode::FORBIDDEN => Kind::Forbidden,
            StatusCode::NOT_FOUND => Kind::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Kind::MethodNotAllowed,
            StatusCode::REQUEST_TIMEOUT => Kind::RequestTimeout,
            StatusCode::CONFLICT => Kind::Conflict,
            StatusCode::PRECONDITION_FAILED => Kind::PreconditionFailed,
            StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Kind::NotJson,
            StatusCode::UNPROCESSABLE_ENTITY => Kind::Invalid,
            StatusCode::TOO_MANY_REQUESTS => Kind::TooManyRequests,
            StatusCode::SERVICE_UNAVAILABLE => Kind::Unavailable,
            _ => Kind::Internal,
        }
    }

    /// Returns the `type` of a problem: a URI reference.
    pub(crate) fn reference(self) -> String {
        let mut name = String::from("/problems/");
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.ends_with('/') {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_every_kind_of_problem() {
        assert_eq!(Kind::NotJson.reference(), "/problems/not-json");
        let documentation = include_str!("../../../docs/controller.md");
        for kind in Kind::ALL {
            let name = kind.reference().replace("/problems/", "| `") + "` |";
            assert!(documentation.contains(&name), "{name}");
        }
    }
}

use crate::words;
use hawser_model::Name;
use hawser_model::access::InvalidToken;
use hawser_model::answer::Problem;
use hawser_units::Line;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason that a request to a controller failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a controller's address.
    #[error("{0:?} is not a controller's address: write it as https://HOST:PORT")]
    Address(String),
    /// No controller is configured.
    #[error("no controller is configured: give at least one as https://HOST:PORT")]
    NoController,
    /// No controller accepted a connection.
    #[error("no controller can be reached: {0}")]
    Unreachable(String),
    /// A controller accepted the request, but did not answer.
    #[error("{controller} did not answer: {reason}")]
    Interrupted {
        /// The controller.
        controller: String,
        /// The cause.
        reason: String,
    },
    /// The controller rejected the request.
    #[error("{}", describe(.0))]
    Rejected(Problem),
    /// The controller's answer has an unknown form.
    #[error("{controller} sent an answer that cannot be parsed: {reason}")]
    Answer {
        /// The controller.
        controller: String,
        /// The error in the answer.
        reason: String,
    },
    /// A stream was silent for longer than the controller's interval of pings allows.
    #[error("nothing was received from the controller for {} s", .0.as_secs())]
    Silent(Duration),
    /// The controller ended a stream, with a reason.
    #[error("the controller ended the stream: {0}")]
    Ended(Line),
    /// The text is not an enrolment token.
    #[error("{0}. Create one with `hawser ctl node enrol NAME --tenant TENANT`")]
    Token(#[from] InvalidToken),
    /// The token is another node's; it was not used.
    #[error(
        "the token enrols the node {token}, but this node is {node}; the token is still valid for the other node"
    )]
    AnotherNode {
        /// The node that the token enrols.
        token: Name,
        /// The node that tried to use it.
        node: Name,
    },
    /// The certificate of this node is not valid by the clock of this machine, and was not renewed.
    #[error(
        "{why}; set the clock if it is wrong, or else enrol the node again with a token of `hawser ctl node enrol {node} --tenant TENANT`"
    )]
    Expired {
        /// The node.
        node: Name,
        /// The dates of clock and certificate.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error from the system.
        source: io::Error,
    },
    /// A certificate or key cannot be read or used.
    #[error(transparent)]
    Tls(#[from] hawser_tls::Error),
    /// A key or certificate is not the expected one.
    #[error("{what}: {reason}")]
    Credentials {
        /// The key or certificate.
        what: String,
        /// The cause.
        reason: String,
    },
}

impl Error {
    /// Returns the HTTP status of the controller's rejection.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Rejected(problem) => Some(problem.status),
            _ => None,
        }
    }

    /// Returns whether the same request may succeed later without anything being changed.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable(_)
            | Error::Interrupted { .. }
            | Error::Silent(_)
            | Error::Ended(_) => true,
            Error::Rejected(problem) => matches!(problem.status, 429 | 500..=599),
            _ => false,
        }
    }
}

/// Creates an error about a key or certificate. `what` names it.
pub(crate) fn credentials(what: &str, reason: String) -> Error {
    Error::Credentials {
        what: what.to_owned(),
        reason,
    }
}

/// Returns the controller's explanation in the words of the command line.
fn describe(problem: &Problem) -> String {
    let detail = Line::new(&words::translate(problem.detail.trim())).into_string();
    let title = Line::new(problem.title.trim());
    match (title.is_empty(), detail.is_empty()) {
        (_, false) => detail,
        (false, true) => title.into_string(),
        (true, true) => format!(
            "the controller rejected the request with status {}",
            problem.status
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(title: &str, detail: &str) -> Error {
        let text = |text: &str| text.to_owned();
        Error::Rejected(Problem {
            kind: Problem::blank(),
            title: text(title),
            status: 404,
            detail: text(detail),
        })
    }

    #[test]
    fn a_controllers_words_are_one_line() {
        for error in [
            problem("a\nb\u{1b}[2J", ""),
            problem("", "a\nb\u{202e}"),
            Error::Ended(Line::new("a\n\u{9b}")),
        ] {
            let text = error.to_string();
            assert!(text.chars().all(hawser_units::is_shown), "{text}");
        }
    }

    #[test]
    fn a_problem_is_reported_in_the_controllers_words() {
        assert_eq!(
            problem("No such flow", "Create it.").to_string(),
            "Create it.",
            "the title is that of the status, which says less"
        );
        assert_eq!(problem("", "Create it.").to_string(), "Create it.");
        assert_eq!(problem("Not Found", "").to_string(), "Not Found");
        assert_eq!(
            problem("", "").to_string(),
            "the controller rejected the request with status 404"
        );
    }
}

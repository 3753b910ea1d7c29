use hawser_control::Name;
use hawser_control::access::InvalidToken;
use hawser_control::answer::Problem;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why something could not be had from a controller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a controller's address.
    #[error("{0:?} is no controller: give its address as https://HOST:PORT")]
    Address(String),
    /// No controller is named.
    #[error("no controller is named: give at least one as https://HOST:PORT")]
    NoController,
    /// No controller could be asked.
    #[error("no controller can be reached: {0}")]
    Unreachable(String),
    /// A controller took the request and was not heard of again.
    #[error("{controller} did not answer: {reason}")]
    Interrupted {
        /// Which.
        controller: String,
        /// Why.
        reason: String,
    },
    /// The controller said no, and why.
    #[error("{}", describe(.0))]
    Refused(Problem),
    /// The controller said something that this version does not understand.
    #[error(
        "{controller} gave an answer that cannot be understood, perhaps it is of another version: {reason}"
    )]
    Answer {
        /// Which.
        controller: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing came by a stream for longer than the controller lets pass.
    #[error("nothing came from the controller for {} s", .0.as_secs())]
    Silent(Duration),
    /// The controller ended a stream, and why.
    #[error("the controller ended the stream: {0}")]
    Ended(String),
    /// Not an enrolment token.
    #[error("{0}. Make one with `hawser ctl node enrol`")]
    Token(#[from] InvalidToken),
    /// The token of another node, which was not used.
    #[error(
        "the token enrols the node {token}, and this one is called {node}; the token is still good there"
    )]
    AnotherNode {
        /// The one that it enrols.
        token: Name,
        /// The one that wanted to use it.
        node: Name,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A key or certificate cannot be used.
    #[error("{what}: {reason}")]
    Credentials {
        /// Which.
        what: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// The status with which the controller said no.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Refused(problem) => Some(problem.status),
            _ => None,
        }
    }

    /// Whether the same request may succeed later without anybody doing anything.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Unreachable(_)
            | Error::Interrupted { .. }
            | Error::Silent(_)
            | Error::Ended(_) => true,
            Error::Refused(problem) => matches!(problem.status, 429 | 500..=599),
            _ => false,
        }
    }
}

fn describe(problem: &Problem) -> String {
    let (title, detail) = (problem.title.trim(), problem.detail.trim());
    match (title.is_empty(), detail.is_empty()) {
        (false, false) => format!("{title}: {detail}"),
        (true, true) => format!("the controller refused with status {}", problem.status),
        _ => format!("{title}{detail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(title: &str, detail: &str) -> Error {
        let text = |text: &str| text.to_owned();
        Error::Refused(Problem {
            kind: Problem::blank(),
            title: text(title),
            status: 404,
            detail: text(detail),
        })
    }

    #[test]
    fn a_problem_is_told_in_the_controllers_words() {
        assert_eq!(
            problem("No such flow", "Create it.").to_string(),
            "No such flow: Create it."
        );
        assert_eq!(problem("", "Create it.").to_string(), "Create it.");
        assert_eq!(problem("Not Found", "").to_string(), "Not Found");
        assert_eq!(
            problem("", "").to_string(),
            "the controller refused with status 404"
        );
    }
}

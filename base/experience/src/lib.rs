//! The lines in which an application tells the agent of its machine how its flow fares, and the answers. Each is one
//! object of JSON. docs/agent.md documents them for applications.
//!
//! ```
//! use hawser_experience::{Answer, Report, Subject};
//!
//! let report = Report::parse(br#"{ "flow": "stage", "frames": 30, "late": 3, "stalled_ms": 0 }"#)?;
//! assert_eq!(report.subject, Subject::Flow("stage".to_owned()));
//! assert_eq!(report.experience.late, Some(3));
//! assert_eq!(Answer::Taken("stage".to_owned()).line(), "{\"taken\":\"stage\"}\n");
//! # Ok::<(), hawser_experience::ReportError>(())
//! ```

use hawser_units::Line;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// The longest line of a report or an answer, bytes, with its line feed.
pub const MAX_LINE_BYTES: usize = 1024;

/// The longest text of an error in an answer, bytes.
const MAX_ERROR_BYTES: usize = 500;

/// The experience of an application with one flow since its last report. What it does not know is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Experience {
    /// Frames that were due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<u32>,
    /// Those of them that came too late or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u32>,
    /// The time for which nothing new could be shown, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled_ms: Option<u32>,
    /// The time from the capture of the newest frame until it was shown, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u32>,
    /// The rate at which the application would like to send or receive, bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
}

/// The report of an application on one of its flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The flow.
    pub subject: Subject,
    /// How it fares.
    pub experience: Experience,
}

/// The flow that a report is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The flow of this name; its number, where flows have no names.
    Flow(String),
    /// The flow that carries packets like this one.
    Packet(Packet),
}

/// A packet that a flow carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address and port of its sender.
    pub source: SocketAddr,
    /// The address and port of its receiver.
    pub destination: SocketAddr,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Returns the number of the protocol.
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }
}

/// The answer to a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The report is taken as one of this flow.
    Taken(String),
    /// The report is refused, with the reason.
    Error(String),
}

/// The reason that a line is no report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The line is longer than [`MAX_LINE_BYTES`].
    #[error("the line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The line is not the JSON of a report.
    #[error("not a report: {0}")]
    Syntax(Line),
    /// No flow is named, or two are.
    #[error("name the flow: either `flow` with its name, or `packet` with one of its packets")]
    Subject,
    /// The source and the destination are of different versions of IP.
    #[error("`source` and `destination` of a packet are both IPv4 or both IPv6")]
    Versions,
    /// The report has no figure.
    #[error(
        "nothing is reported: give at least one of frames, late, stalled_ms, delay_ms and rate_bps"
    )]
    Empty,
    /// More frames are late than there were.
    #[error("`late` is greater than `frames`, of which it is a part")]
    Late,
}

/// A report as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flow: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    packet: Option<Packet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    frames: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    late: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stalled_ms: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate_bps: Option<u64>,
}

impl Report {
    /// Parses a line, with or without its line feed.
    ///
    /// # Errors
    /// Returns why it is no report, for the application.
    pub fn parse(line: &[u8]) -> Result<Self, ReportError> {
        if line.len() > MAX_LINE_BYTES {
            return Err(ReportError::TooLong);
        }
        let written: Written = serde_json::from_slice(line).map_err(|error| {
            ReportError::Syntax(Line::within(&error.to_string(), MAX_ERROR_BYTES / 2))
        })?;
        let experience = Experience {
            frames: written.frames,
            late: written.late,
            stalled_ms: written.stalled_ms,
            delay_ms: written.delay_ms,
            rate_bps: written.rate_bps,
        };
        let subject = match (written.flow, written.packet) {
            (Some(flow), None) => Subject::Flow(flow),
            (None, Some(packet)) => Subject::Packet(packet.canonical()?),
            _ => return Err(ReportError::Subject),
        };
        if experience == Experience::default() {
            return Err(ReportError::Empty);
        }
        let frames = experience.frames.unwrap_or(u32::MAX);
        if experience.late.is_some_and(|late| late > frames) {
            return Err(ReportError::Late);
        }
        Ok(Report {
            subject,
            experience,
        })
    }

    /// Returns the line, with its line feed.
    pub fn line(&self) -> String {
        let (flow, packet) = match &self.subject {
            Subject::Flow(flow) => (Some(flow.clone()), None),
            Subject::Packet(packet) => (None, Some(*packet)),
        };
        let Experience {
            frames,
            late,
            stalled_ms,
            delay_ms,
            rate_bps,
        } = self.experience;
        line(&Written {
            flow,
            packet,
            frames,
            late,
            stalled_ms,
            delay_ms,
            rate_bps,
        })
    }
}

impl Packet {
    /// Returns the packet with IPv4 addresses where IPv6 ones stand for them, as those of a socket of both versions do.
    fn canonical(self) -> Result<Self, ReportError> {
        let ipv4 =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let (source, destination) = (ipv4(self.source), ipv4(self.destination));
        match source.is_ipv4() == destination.is_ipv4() {
            true => Ok(Packet {
                source,
                destination,
                ..self
            }),
            false => Err(ReportError::Versions),
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        write!(f, "{protocol} from {} to {}", self.source, self.destination)
    }
}

impl Answer {
    /// Returns the answer to a report that is refused.
    pub fn refusal(reason: &str) -> Self {
        Answer::Error(Line::within(reason, MAX_ERROR_BYTES).into_string())
    }

    /// Parses a line, with or without its line feed.
    ///
    /// # Errors
    /// Returns why it is no answer.
    pub fn parse(line: &[u8]) -> Result<Self, ReportError> {
        serde_json::from_slice(line).map_err(|error| {
            ReportError::Syntax(Line::within(&error.to_string(), MAX_ERROR_BYTES / 2))
        })
    }

    /// Returns the line, with its line feed.
    pub fn line(&self) -> String {
        line(self)
    }
}

fn line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).expect("strings and numbers are JSON");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(line: &str) -> String {
        Report::parse(line.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_flow_is_named_by_its_name_or_a_packet() {
        let line = r#"{"packet":{"protocol":"udp","source":"[::ffff:10.99.0.1]:14748","destination":"10.99.0.2:40000"},"late":1}"#;
        let packet = Packet {
            protocol: Protocol::Udp,
            source: "10.99.0.1:14748".parse().unwrap(),
            destination: "10.99.0.2:40000".parse().unwrap(),
        };
        let report = Report::parse(line.as_bytes()).unwrap();
        assert_eq!(report.subject, Subject::Packet(packet));
        assert_eq!(
            packet.to_string(),
            "UDP from 10.99.0.1:14748 to 10.99.0.2:40000"
        );
    }

    #[test]
    fn an_application_learns_why_its_line_is_refused() {
        for (line, reason) in [
            ("", "not a report: EOF while parsing"),
            ("late 3", "not a report: expected value"),
            (
                r#"{"flow":"a","late":"three"}"#,
                "not a report: invalid type: string \"three\", expected u32",
            ),
            (
                r#"{"flow":"a","late":2.5}"#,
                "invalid type: floating point `2.5`, expected u32",
            ),
            (r#"{"flow":"a","late":-1}"#, "invalid value: integer `-1`"),
            (
                r#"{"flow":"a","late":99999999999}"#,
                "invalid value: integer `99999999999`",
            ),
            (
                r#"{"flow":"a","later":1}"#,
                "unknown field `later`, expected one of `flow`, `packet`, `frames`",
            ),
            (
                r#"{"flow":"a","late":1,"late":2}"#,
                "duplicate field `late`",
            ),
            (r#"{"flow":"a","late":1}{}"#, "trailing characters"),
            (r#"{"late":1}"#, "name the flow: either `flow`"),
            (r#"{"flow":"a"}"#, "nothing is reported"),
            (
                r#"{"flow":"a","frames":3,"late":4}"#,
                "`late` is greater than `frames`",
            ),
            (
                r#"{"packet":{"protocol":"sctp","source":"1.1.1.1:1","destination":"1.1.1.2:1"},"late":1}"#,
                "unknown variant `sctp`",
            ),
            (
                r#"{"packet":{"protocol":"udp","source":"1.1.1.1","destination":"1.1.1.2:1"},"late":1}"#,
                "invalid socket address syntax",
            ),
            (
                r#"{"packet":{"protocol":"udp","source":"1.1.1.1:1","destination":"[::1]:1"},"late":1}"#,
                "both IPv4 or both IPv6",
            ),
        ] {
            let error = error(line);
            assert!(error.contains(reason), "{line}: {error}");
        }
        let both = r#"{"flow":"a","packet":{"protocol":"udp","source":"1.1.1.1:1","destination":"1.1.1.2:1"},"late":1}"#;
        assert_eq!(error(both), ReportError::Subject.to_string());
        let long = format!(r#"{{"flow":"{}","late":1}}"#, "a".repeat(MAX_LINE_BYTES));
        assert_eq!(error(&long), ReportError::TooLong.to_string());
    }

    #[test]
    fn an_answer_is_one_harmless_line() {
        let line = "{\"flow\":\"a\",\"\\u001b[31m\\n\\u202e\":1}";
        let answer = Answer::refusal(&error(line)).line();
        assert_eq!(answer.trim_end().lines().count(), 1);
        assert!(
            answer
                .chars()
                .all(|char| char == '\n' || !char.is_control()),
            "{answer}"
        );
        let long = Answer::refusal(&"\"\u{1b}\\".repeat(10_000));
        assert!(long.line().len() <= MAX_LINE_BYTES);
        assert_eq!(Answer::parse(long.line().as_bytes()), Ok(long));
    }

    fn experience() -> impl Strategy<Value = Experience> {
        (
            0u32..100,
            0u32..100,
            any::<u32>(),
            any::<Option<u32>>(),
            any::<Option<u64>>(),
        )
            .prop_map(
                |(late, others, stalled_ms, delay_ms, rate_bps)| Experience {
                    frames: Some(late + others),
                    late: Some(late),
                    stalled_ms: Some(stalled_ms),
                    delay_ms,
                    rate_bps,
                },
            )
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_report_or_an_error(bytes: Vec<u8>) {
            if let Err(error) = Report::parse(&bytes) {
                let answer = Answer::refusal(&error.to_string()).line();
                prop_assert!(answer.len() <= MAX_LINE_BYTES && answer.lines().count() == 1);
            }
        }

        #[test]
        fn any_json_text_is_a_report_or_an_error(text in r#"[{}\[\]":,a-z0-9\\. -]{0,60}"#) {
            let _ = Report::parse(text.as_bytes());
        }

        #[test]
        fn a_report_is_parsed_as_it_was_written(experience in experience(), flow in "[a-z0-9-]{1,63}") {
            let report = Report { subject: Subject::Flow(flow), experience };
            prop_assert_eq!(Report::parse(report.line().as_bytes()), Ok(report));
        }
    }
}

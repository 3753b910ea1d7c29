//! Reports to the agent of this machine how a flow fares. It takes them at a socket, one line each.

use hawser_experience::{Answer, MAX_LINE_BYTES, Report};
use hawser_units::{Instant, Line};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between two reports.
pub const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The time for which [`Reporter::ask`] waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The number of different refusals that are logged.
const MAX_SAID: usize = 8;

/// Reports of a program that has more important things to do: it never waits for the agent, and connects again to one that
/// has started again. The log gives each reason of a refusal once.
#[derive(Debug)]
pub struct Reporter {
    socket: PathBuf,
    stream: Option<UnixStream>,
    answers: Vec<u8>,
    next_at: Instant,
    said: BTreeSet<String>,
}

impl Reporter {
    /// Creates a reporter that connects with its first report.
    pub fn new(socket: PathBuf) -> Self {
        Reporter {
            socket,
            stream: None,
            answers: Vec::new(),
            next_at: Instant::ZERO,
            said: BTreeSet::new(),
        }
    }

    /// Returns when the next report is due: a second after the last one.
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Makes the next report due later, because there is nothing to report.
    pub fn postpone(&mut self, until: Instant) {
        self.next_at = until;
    }

    /// Reports, and reads the answers to earlier reports. A report for which the agent has no room is left out.
    pub fn report(&mut self, now: Instant, report: &Report) {
        self.next_at = now + REPORT_EVERY;
        if let Err(error) = self.send(report) {
            self.stream = None;
            self.answers.clear();
            let socket = self.socket.display();
            self.say(format!("the agent at {socket} takes no reports: {error}"));
        }
    }

    fn send(&mut self, report: &Report) -> io::Result<()> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(&self.socket)?,
        };
        let mut bytes = [0; MAX_LINE_BYTES];
        match stream.read(&mut bytes) {
            Ok(0) => {
                // The agent has stopped, or has said why it ends the connection.
                self.take_answers();
                stream = connect(&self.socket)?;
            }
            Ok(count) => {
                self.answers.extend_from_slice(&bytes[..count]);
                self.take_answers();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        match stream.write(report.line().as_bytes()) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn take_answers(&mut self) {
        let answers = std::mem::take(&mut self.answers);
        let end = answers.iter().rposition(|byte| *byte == b'\n');
        let (lines, rest) = answers.split_at(end.map_or(0, |end| end + 1));
        for line in lines.split(|byte| *byte == b'\n') {
            if let Ok(Answer::Error(reason)) = Answer::parse(line) {
                self.say(format!(
                    "the agent refuses a report: {}",
                    Line::new(&reason)
                ));
            }
        }
        let is_line = rest.len() < MAX_LINE_BYTES;
        self.answers = rest.to_vec();
        self.answers.truncate(if is_line { rest.len() } else { 0 });
    }

    fn say(&mut self, what: String) {
        if self.said.len() < MAX_SAID && !self.said.contains(&what) {
            tracing::warn!("{what}");
            self.said.insert(what);
        }
    }
}

/// A connection to an agent that waits for its answers.
#[derive(Debug)]
pub struct Conversation(BufReader<UnixStream>);

impl Conversation {
    /// Connects to the socket of an agent.
    ///
    /// # Errors
    /// If no agent listens there.
    pub fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(Conversation(BufReader::new(stream)))
    }

    /// Sends a line, and returns the answer.
    ///
    /// # Errors
    /// If the connection is lost, or the agent does not answer.
    pub fn ask(&mut self, line: &str) -> io::Result<Answer> {
        let mut text = line.trim_end().to_owned();
        text.push('\n');
        self.0.get_mut().write_all(text.as_bytes())?;
        let mut answer = Vec::new();
        let limit = MAX_LINE_BYTES as u64;
        self.0.by_ref().take(limit).read_until(b'\n', &mut answer)?;
        if answer.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Answer::parse(&answer).map_err(|error| io::Error::other(format!("the answer is {error}")))
    }
}

/// Connects without waiting: an agent that accepts nobody refuses.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experience::{Experience, Subject};
    use std::os::unix::net::UnixListener;

    fn report() -> Report {
        Report {
            subject: Subject::Flow("stage".to_owned()),
            experience: Experience {
                late: Some(3),
                ..Experience::default()
            },
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn accepted(listener: &UnixListener) -> BufReader<UnixStream> {
        BufReader::new(listener.accept().unwrap().0)
    }

    fn next(application: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        application.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn a_reporter_survives_its_agent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.sock");
        let mut reporter = Reporter::new(path.clone());
        reporter.report(at(0), &report());
        assert_eq!(reporter.next_at(), at(1));
        for round in 1..3 {
            let agent = UnixListener::bind(&path).unwrap();
            reporter.report(at(round), &report());
            let mut connection = accepted(&agent);
            assert_eq!(next(&mut connection), report().line());
            let refusal = Answer::refusal("no such flow").line();
            connection.get_mut().write_all(refusal.as_bytes()).unwrap();
            reporter.report(at(round), &report());
            assert_eq!(next(&mut connection), report().line());
            std::fs::remove_file(&path).unwrap();
        }
        // That there was no agent, and the refusal, once each.
        assert_eq!(reporter.said.len(), 2, "{:?}", reporter.said);
    }

    #[test]
    fn a_deaf_agent_that_answers_garbage_stops_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.sock");
        let agent = UnixListener::bind(&path).unwrap();
        let mut reporter = Reporter::new(path);
        reporter.report(at(0), &report());
        let mut connection = accepted(&agent).into_inner();
        connection.set_nonblocking(true).unwrap();
        for round in 1..5_000 {
            let _ = connection.write(&[b'x'; 100]);
            let _ = connection.write(Answer::refusal(&round.to_string()).line().as_bytes());
            reporter.report(at(round), &report());
            assert!(reporter.answers.len() <= 2 * MAX_LINE_BYTES);
        }
        assert!(reporter.said.len() <= MAX_SAID);
    }
}

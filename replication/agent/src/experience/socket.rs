//! The socket at which applications report. It is polled, and never waits for an application.

use super::session::{Answers, Named, Refusal, Refused, Session};
use crate::config::Reporters;
use hawser_experience::{Answer, Report};
use hawser_units::Instant;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// The applications that may be connected.
const MAX_APPLICATIONS: usize = 128;

/// The applications of one user that may be connected.
const MAX_OF_A_USER: usize = 32;

/// The applications that are accepted in one turn, and that wait for it.
const ACCEPTED_IN_A_TURN: usize = 8;
const BACKLOG: i32 = 16;

/// The bytes that are read of one application, and the applications of which are read, in one turn.
const READ_BYTES: usize = 2048;
const READ_IN_A_TURN: usize = 32;

/// The time after which an application that sends nothing is disconnected.
const IDLE: Duration = Duration::from_secs(60);

/// The socket, and the applications that are connected to it. The file is removed with it.
#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    socket: UnixListener,
    reporters: Reporters,
    applications: Vec<Application>,
    /// The application of which is read first in the next turn.
    first: usize,
    /// Whether the log says that a user may not report.
    has_said: bool,
}

/// A connected application.
#[derive(Debug)]
struct Application {
    stream: UnixStream,
    user: u32,
    session: Session,
    heard: Instant,
    has_ended: bool,
}

impl Listener {
    /// Makes the socket at this path. One of an earlier agent is replaced.
    pub(super) fn bind(path: &Path, reporters: Reporters) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(path)?)?;
        // All may connect: who may report is told by the user, so that others learn why they may not.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        socket.listen(BACKLOG)?;
        Ok(Listener {
            path: path.to_owned(),
            socket: UnixListener::from(std::os::fd::OwnedFd::from(socket)),
            reporters,
            applications: Vec::new(),
            first: 0,
            has_said: false,
        })
    }

    /// Returns the path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of connected applications.
    pub(super) fn connections(&self) -> usize {
        self.applications.len()
    }

    /// Handles what has arrived, up to a limit.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        mut take: impl FnMut(&Report, &mut Named) -> Result<String, Refused>,
        mut refuse: impl FnMut(Refusal),
    ) {
        let ready = self.ready().unwrap_or_default();
        let mut ready = ready.into_iter();
        if ready.next().unwrap_or(false) {
            self.accept(now, &mut refuse);
        }
        let count = self.applications.len();
        let ready: Vec<bool> = ready.collect();
        let order = (0..ready.len()).map(|index| (self.first + index) % ready.len());
        let order: Vec<usize> = order.filter(|index| ready[*index]).collect();
        for index in order.iter().take(READ_IN_A_TURN) {
            self.applications[*index].read(now, &mut take, &mut refuse);
        }
        // Those that were left out are the first ones of the next turn.
        self.first = order.get(READ_IN_A_TURN).copied().unwrap_or(0);
        self.applications
            .retain(|one| !one.has_ended && now.saturating_since(one.heard) < IDLE);
        if self.applications.len() < count {
            self.first = 0;
        }
    }

    /// Returns whether there is something to accept, and then whether there is something to read of each application.
    fn ready(&self) -> nix::Result<Vec<bool>> {
        let of_applications = self.applications.iter().map(|one| one.stream.as_fd());
        let all = std::iter::once(self.socket.as_fd()).chain(of_applications);
        let mut all: Vec<_> = all
            .map(|file| PollFd::new(file, PollFlags::POLLIN))
            .collect();
        poll(&mut all, PollTimeout::ZERO)?;
        Ok(all.iter().map(|one| one.any().unwrap_or(false)).collect())
    }

    fn accept(&mut self, now: Instant, refuse: &mut impl FnMut(Refusal)) {
        for _ in 0..ACCEPTED_IN_A_TURN {
            let Ok((stream, _)) = self.socket.accept() else {
                return;
            };
            let Ok(user) = user_of(&stream) else { continue };
            match self.admit(user) {
                Ok(()) => self.applications.push(Application {
                    stream,
                    user,
                    session: Session::default(),
                    heard: now,
                    has_ended: false,
                }),
                Err((refusal, reason)) => {
                    refuse(refusal);
                    if refusal == Refusal::User && !std::mem::replace(&mut self.has_said, true) {
                        warn!("an application may not report how its flow fares: {reason}");
                    }
                    answer(&mut &stream, &Answer::refusal(&reason).line());
                }
            }
        }
    }

    fn admit(&self, user: u32) -> Result<(), Refused> {
        if !self.reporters.admit(user) {
            let reason = format!(
                "user {user} may not report: `reporters` in the file of the agent does not name this user"
            );
            return Err((Refusal::User, reason));
        }
        let of_user = self.applications.iter().filter(|one| one.user == user);
        let is_full =
            self.applications.len() >= MAX_APPLICATIONS || of_user.count() >= MAX_OF_A_USER;
        match is_full {
            false => Ok(()),
            true => Err((
                Refusal::Applications,
                "too many applications are connected".to_owned(),
            )),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A file that stays is replaced by the next agent.
        let _ = fs::remove_file(&self.path);
    }
}

impl Application {
    fn read(
        &mut self,
        now: Instant,
        take: &mut impl FnMut(&Report, &mut Named) -> Result<String, Refused>,
        refuse: &mut impl FnMut(Refusal),
    ) {
        let mut bytes = [0; READ_BYTES];
        let answers = match self.stream.read(&mut bytes) {
            Ok(0) => self.session.handle_end(now, take, refuse),
            Ok(count) => {
                self.heard = now;
                self.session.handle(now, &bytes[..count], take, refuse)
            }
            Err(error) if is_for_now(&error) => return,
            Err(_) => Answers {
                ends: true,
                ..Answers::default()
            },
        };
        answer(&mut self.stream, &answers.text);
        self.has_ended |= answers.ends;
    }
}

/// Sends answers. Those for which an application that does not read them has no room are left out.
fn answer(stream: &mut impl Write, text: &str) {
    if !text.is_empty() {
        let _ = stream.write(text.as_bytes());
    }
}

fn user_of(stream: &UnixStream) -> io::Result<u32> {
    stream.set_nonblocking(true)?;
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experience::Subject;
    use std::io::{BufRead, BufReader};

    struct Rig {
        listener: Listener,
        directory: tempfile::TempDir,
        now: Instant,
        taken: Vec<String>,
        refused: Vec<Refusal>,
    }

    impl Rig {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("edge.sock");
            Rig {
                listener: Listener::bind(&path, Reporters::default()).unwrap(),
                directory,
                now: Instant::ZERO,
                taken: Vec::new(),
                refused: Vec::new(),
            }
        }

        fn connect(&mut self) -> BufReader<UnixStream> {
            let stream = UnixStream::connect(self.directory.path().join("edge.sock")).unwrap();
            stream.set_nonblocking(true).unwrap();
            self.poll();
            BufReader::new(stream)
        }

        fn poll(&mut self) {
            let take = |report: &Report, _: &mut Named| match &report.subject {
                Subject::Flow(flow) => {
                    self.taken.push(flow.clone());
                    Ok(flow.clone())
                }
                Subject::Packet(_) => Err((Refusal::Flow, "no flow".to_owned())),
            };
            self.listener
                .poll(self.now, take, |refusal| self.refused.push(refusal));
        }
    }

    fn said(application: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        application.read_line(&mut line).unwrap();
        line
    }

    const LINE: &[u8] = b"{\"flow\":\"stage\",\"late\":3}\n";

    #[test]
    fn an_application_is_answered() {
        let mut rig = Rig::new();
        let mut application = rig.connect();
        application.get_mut().write_all(LINE).unwrap();
        rig.poll();
        assert_eq!(said(&mut application), "{\"taken\":\"stage\"}\n");
        application
            .get_mut()
            .write_all(b"three are late\n")
            .unwrap();
        rig.poll();
        assert!(said(&mut application).starts_with("{\"error\":\"not a report: "));
        assert_eq!(rig.refused, [Refusal::Line]);
        drop(application);
        rig.poll();
        assert_eq!(rig.listener.connections(), 0);
    }

    #[test]
    fn more_applications_than_there_is_room_for_are_told() {
        let mut rig = Rig::new();
        let mut connected: Vec<_> = (0..MAX_OF_A_USER).map(|_| rig.connect()).collect();
        let mut one_more = rig.connect();
        assert!(said(&mut one_more).contains("too many applications"));
        assert_eq!(rig.refused, [Refusal::Applications]);
        // The others report as before.
        for application in &mut connected {
            application.get_mut().write_all(LINE).unwrap();
        }
        rig.poll();
        assert_eq!(rig.taken.len(), MAX_OF_A_USER);
        drop(connected.pop());
        rig.poll();
        rig.connect().get_mut().write_all(LINE).unwrap();
        rig.poll();
        assert_eq!(rig.taken.len(), MAX_OF_A_USER + 1);
    }

    #[test]
    fn an_application_that_reads_no_answer_stops_nothing() {
        let mut rig = Rig::new();
        let (mut deaf, mut other) = (rig.connect(), rig.connect());
        for second in 0..2_000 {
            rig.now = Instant::ZERO + Duration::from_secs(second);
            deaf.get_mut().write_all(LINE).unwrap();
            other.get_mut().write_all(LINE).unwrap();
            rig.poll();
            assert_eq!(said(&mut other), "{\"taken\":\"stage\"}\n");
        }
        assert_eq!(rig.taken.len(), 4_000);
    }

    #[test]
    fn a_silent_application_is_disconnected() {
        let mut rig = Rig::new();
        let application = rig.connect();
        rig.now += IDLE;
        rig.poll();
        assert_eq!(rig.listener.connections(), 0);
        drop(application);
    }

    #[test]
    fn the_socket_of_an_agent_that_was_killed_is_replaced() {
        let rig = Rig::new();
        let path = rig.listener.path().to_owned();
        std::mem::forget(rig.listener);
        drop(Listener::bind(&path, Reporters::default()).unwrap());
        assert!(!path.exists());
    }
}

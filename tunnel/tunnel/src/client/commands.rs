//! Carries out commands, and passes their outcomes to the supervisor.

use super::Client;
use super::connections::{Outcome, Stage};
use super::dial::{Attached, Dialed, Refused, TooLarge};
use crate::join::{CloseCode, Opened, PathNumber, Refusal, Secret};
use crate::session::Command as SessionCommand;
use crate::time;
use anyhow::Result;
use hawser_units::PathId;
use hawser_uplinks::{Answer, CloseReason, Command, ConnectionId, DialReason, Notice};
use noq::ConnectionError;
use std::net::IpAddr;
use tracing::{debug, info};

impl Client {
    pub(super) async fn carry_out(&mut self, command: Command) {
        match command {
            Command::Dial {
                connection,
                uplink,
                server,
                reason,
            } => {
                if reason == DialReason::Redial {
                    let interface = uplink.interface.as_str();
                    debug!(interface, "path silent: trying another connection");
                }
                // Beside a path, the size is found out by the join, within the time for that, unless the
                // network may carry even less than is known.
                let fits = reason != DialReason::Redial || self.narrow.is_limited(&uplink);
                self.connections.dial(connection, uplink, server, fits);
            }
            Command::Open { connection, path } => self.open(connection, path),
            Command::Join {
                connection,
                path,
                standby,
            } => self.join(connection, path, standby),
            Command::StartSession { connection } => self.start_current(connection).await,
            Command::AddPath { connection } => self.add_path(connection).await,
            Command::Close { connection, reason } => self.close(connection, reason).await,
            Command::Standby {
                connection,
                standby,
            } => self.set_standby(connection, standby).await,
            Command::Readdress {
                connection,
                address,
            } => self.readdress(connection, address).await,
            Command::CloseSession => self.close_session(),
        }
    }

    fn open(&mut self, connection: ConnectionId, path: PathId) {
        let path = PathNumber {
            index: path,
            standby: false,
        };
        let wanted = self.wanted_addresses();
        self.connections.open(connection, wanted, path);
    }

    fn join(&mut self, connection: ConnectionId, path: PathId, standby: bool) {
        let path = PathNumber {
            index: path,
            standby,
        };
        if let Some(current) = &self.current {
            self.connections.join(connection, current, path);
        }
    }

    /// Returns the inner addresses to request: those that a controller assigned, or the last ones.
    fn wanted_addresses(&self) -> Vec<IpAddr> {
        match self.servers.addresses() {
            assigned if !assigned.is_empty() => assigned,
            _ => self.addresses.own.clone(),
        }
    }

    /// Makes the session that a connection has opened the current one.
    async fn start_current(&mut self, connection: ConnectionId) {
        if let Some(current) = self.connections.take_opened(connection) {
            self.to_session
                .send_replace(Some(current.handle.packets.clone()));
            self.current = Some(current);
            self.add_path(connection).await;
        }
    }

    async fn add_path(&mut self, connection: ConnectionId) {
        if let Some(current) = &self.current {
            self.connections.add_path(connection, &current.handle).await;
        }
    }

    async fn set_standby(&self, connection: ConnectionId, standby: bool) {
        if let (Some((interface, path)), Some(current)) =
            (self.connections.path(connection), &self.current)
        {
            info!(interface, standby, "uplink standby changed");
            let command = SessionCommand::Standby(path.index, standby);
            current.handle.send_command(command).await;
        }
    }

    /// Moves a path to another address; closes it if that fails.
    async fn readdress(&mut self, connection: ConnectionId, own: IpAddr) {
        let Some((interface, path)) = self.connections.path(connection) else {
            return;
        };
        info!(interface, %own, "uplink address changed");
        if let Err(error) = path.readdress(&self.dialer, interface, own) {
            info!(interface, "reconnecting the uplink: {error:#}");
            self.close_connection(connection, CloseCode::Replaced).await;
            let notice = Notice::Closed {
                connection,
                superseded: false,
            };
            self.supervisor.handle_notice(time::now(), notice);
        } else if let Some(current) = &self.current {
            current.handle.send_command(path.moved()).await;
        }
    }

    async fn close(&mut self, connection: ConnectionId, reason: CloseReason) {
        let code = match reason {
            CloseReason::Unused => CloseCode::Left,
            CloseReason::Unanswered => {
                self.record_silence(connection);
                CloseCode::Left
            }
            CloseReason::Replaced => CloseCode::Replaced,
            CloseReason::AddressFamily => {
                if let Some((interface, _)) = self.connections.path(connection) {
                    info!(
                        interface,
                        "reconnecting the uplink: the address family has changed"
                    );
                }
                CloseCode::Replaced
            }
        };
        self.close_connection(connection, code).await;
    }

    /// Records that the server did not answer over a connection that was to replace a path.
    fn record_silence(&self, connection: ConnectionId) {
        let interface = self.connections.interface(connection);
        if !interface.is_some_and(|interface| self.is_failed_trial(interface)) {
            self.connections.record_silence(connection);
        }
    }

    /// Returns whether a connection that failed was one to try larger packets, which is no error of
    /// the uplink, and logs it.
    fn is_failed_trial(&self, interface: &str) -> bool {
        let is_trial = self.narrow.is_trial(time::now(), interface);
        if is_trial {
            info!(interface, "larger packets still do not arrive");
        }
        is_trial
    }

    /// Ends a connection, however far it is.
    async fn close_connection(&mut self, connection: ConnectionId, code: CloseCode) {
        let session = self.current.as_ref().map(|current| &current.handle);
        match self.connections.take(connection).map(|entry| entry.stage) {
            Some(Stage::Working(task)) => task.abort(),
            Some(Stage::Dialed(dialed)) => code.close(&dialed.connection),
            Some(Stage::Joined(attached)) => code.close(&attached.connection),
            Some(Stage::Opened(opened)) => {
                opened.0.handle.stop(CloseCode::Done);
                code.close(&opened.1.connection);
            }
            Some(Stage::Path(path)) => path.close(code, session).await,
            None => {}
        }
    }

    fn close_session(&mut self) {
        self.connections.drop_paths();
        if let Some(current) = self.current.take() {
            current.handle.stop(CloseCode::Done);
        }
    }

    /// Passes a report of a connection to the supervisor.
    pub(super) async fn handle_outcome(&mut self, outcome: Outcome) {
        let now = time::now();
        match outcome {
            Outcome::Dialed(connection, dialed) => {
                let dialed = self.dialed(connection, dialed);
                self.supervisor.handle_dialed(now, connection, dialed);
                self.handle_uplinks();
            }
            Outcome::Opened(connection, answer) => {
                let answer = self.opened(connection, answer);
                self.supervisor.handle_answer(now, connection, answer);
                self.handle_uplinks();
            }
            Outcome::Joined(connection, answer) => {
                let answer = self.joined(connection, answer);
                self.supervisor.handle_answer(now, connection, answer);
                self.handle_uplinks();
            }
            Outcome::Closed(connection, reason) => {
                self.path_closed(connection, &reason).await;
                let notice = Notice::Closed {
                    connection,
                    superseded: CloseCode::Superseded.is_reason_of(&reason),
                };
                self.supervisor.handle_notice(now, notice);
            }
            Outcome::Notice(notice) => self.supervisor.handle_notice(now, notice),
        }
    }

    /// Returns what the supervisor is to know of a dialed connection, or none if there is none.
    fn dialed(
        &mut self,
        id: ConnectionId,
        dialed: Result<Dialed>,
    ) -> Option<hawser_uplinks::Dialed> {
        match dialed {
            Ok(dialed) => {
                let (rtt, remote, mtu) = (dialed.rtt(), dialed.remote, dialed.uplink.mtu);
                if dialed.is_narrower {
                    self.narrow.fit(time::now(), &dialed.uplink);
                }
                self.connections.set_dialed(id, dialed);
                Some(hawser_uplinks::Dialed { rtt, remote, mtu })
            }
            Err(error) => {
                self.record(id, &error);
                None
            }
        }
    }

    fn opened(
        &mut self,
        id: ConnectionId,
        answer: Result<Box<(Opened, Secret, Attached)>>,
    ) -> Answer {
        if !self.supervisor.is_opening(id) {
            return Answer::Failed;
        }
        let server = self.connections.server(id).to_owned();
        let prepared = answer.and_then(|answer| {
            let (opened, secret, attached) = *answer;
            let current = self.prepare(server, opened, secret)?;
            Ok(Box::new((current, attached)))
        });
        match prepared {
            Ok(opened) => {
                self.confirm_mtu(&opened.1);
                self.connections.set_stage(id, Stage::Opened(opened));
                Answer::Accepted
            }
            Err(error) => self.failed(id, &error),
        }
    }

    fn joined(&mut self, id: ConnectionId, answer: Result<Attached>) -> Answer {
        match answer {
            Ok(attached) => {
                self.confirm_mtu(&attached);
                let stage = Stage::Joined(Box::new(attached));
                self.connections.set_stage(id, stage);
                Answer::Accepted
            }
            Err(error) => self.failed(id, &error),
        }
    }

    /// Takes note of an answer to a full packet. TCP cuts packets to any size.
    fn confirm_mtu(&mut self, attached: &Attached) {
        if !attached.over_tcp {
            self.narrow.confirm(&attached.uplink);
        }
    }

    /// Drops a connection that the server did not accept; returns the reason.
    fn failed(&mut self, id: ConnectionId, error: &anyhow::Error) -> Answer {
        let refused = error.downcast_ref::<Refused>();
        match refused.map(|refused| refused.reason) {
            Some(Refusal::UnknownSession) => {
                self.connections.take(id);
                Answer::UnknownSession
            }
            reason => {
                self.record(id, error);
                match reason {
                    Some(_) => Answer::Refused,
                    None => Answer::Failed,
                }
            }
        }
    }

    /// Drops a connection that failed, and records why.
    fn record(&mut self, id: ConnectionId, error: &anyhow::Error) {
        let mut was_trial = false;
        if let Some(TooLarge { uplink, mtu }) = error.downcast_ref() {
            was_trial = self.is_failed_trial(&uplink.interface);
            self.narrow.narrow(time::now(), uplink, *mtu);
        }
        if let Some(entry) = self.connections.take(id)
            && !was_trial
        {
            let errors = &self.dialer.dial_errors;
            errors.record(&entry.interface, &entry.server, error);
        }
    }

    /// Removes a path whose connection was closed from the session.
    async fn path_closed(&mut self, id: ConnectionId, reason: &ConnectionError) {
        let Some((interface, _)) = self.connections.path(id) else {
            return;
        };
        info!(interface, "uplink disconnected: {reason}");
        // The connection is closed already, so that the code has no effect.
        self.close_connection(id, CloseCode::Left).await;
    }
}

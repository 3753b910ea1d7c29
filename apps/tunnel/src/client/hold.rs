//! The client while it has a session.

use super::attach::SessionLoss;
use super::cost::Candidate;
use super::search::{Found, finished, search};
use super::{BACKOFF, Client, POLL_INTERVAL, POLLS_PER_STATUS};
use crate::config::ServerEntry;
use crate::session::{Command, PathReport};
use crate::time;
use hawser_client::Backoff;
use hawser_units::PathId;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, interval, sleep};
use tracing::{info, warn};

/// The time without an acknowledgement over any path after which other servers are tried as well.
const SILENCE: Duration = Duration::from_secs(1);

/// The time without an acknowledgement after which a path does not count as working.
const HICCUP: Duration = Duration::from_millis(500);

/// The pause after another client with the same name has taken over the session, so that the two do
/// not take turns.
const SUPERSEDED_PAUSE: Duration = Duration::from_secs(30);

impl Client {
    /// Runs the session until it has ended, or until another server was found, which is returned.
    pub(super) async fn run_session(&mut self) -> Found {
        let mut poll = interval(POLL_INTERVAL);
        let mut polls = 0;
        let mut session_unknown = false;
        let mut search: Option<tokio::task::JoinHandle<Found>> = None;
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        let mut not_before = Instant::now();
        let mut was_silent = false;
        loop {
            let Some(current) = &mut self.current else {
                return None;
            };
            tokio::select! {
                Ok(()) = self.uplinks.changed() => self.follow_uplinks(),
                Some(session_loss) = current.session_loss.recv() => {
                    let own = current.membership.server.clone();
                    warn!(server = own.name, "{session_loss}");
                    if session_loss == SessionLoss::Superseded {
                        self.close_session();
                        self.show_while(sleep(SUPERSEDED_PAUSE)).await;
                        return None;
                    }
                    session_unknown |= session_loss == SessionLoss::UnknownSession;
                    let elsewhere = |server: &ServerEntry| session_loss != SessionLoss::Draining || *server != own;
                    if search.is_none() {
                        let servers = self.servers.get().await.into_iter();
                        search = Some(self.begin_search(servers.filter(elsewhere).collect()));
                    }
                }
                found = finished(&mut search) => {
                    search = None;
                    let ended = session_unknown || current.membership.handle.has_ended();
                    match found {
                        Some((_, server)) if server == current.membership.server && !ended => self.reconnect(),
                        Some(found) => return Some(found),
                        None if ended => return None,
                        None => not_before = Instant::now() + backoff.after_failure(1.0),
                    }
                }
                _ = poll.tick() => {
                    polls += 1;
                    let silent = self.poll(polls % POLLS_PER_STATUS == 0).await;
                    if silent && !was_silent {
                        info!("no acknowledgement over any uplink: trying all servers");
                    }
                    was_silent = silent;
                    if !silent {
                        backoff.reset();
                    } else if search.is_none() && Instant::now() >= not_before {
                        search = Some(self.begin_search(self.servers.get().await));
                    }
                }
            }
        }
    }

    fn begin_search(&self, servers: Vec<ServerEntry>) -> tokio::task::JoinHandle<Found> {
        tokio::spawn(search(Arc::clone(&self.dialer), self.usable(), servers))
    }

    /// Polls the session; returns whether no path has delivered anything for too long.
    async fn poll(&mut self, write: bool) -> bool {
        let Some(current) = &mut self.current else {
            return false;
        };
        let Some(report) = current.membership.handle.report().await else {
            return true;
        };
        let works = |path: &PathReport| path.figures.unacknowledged < HICCUP;
        let paths: Vec<_> = report
            .paths
            .iter()
            .map(|path| Candidate {
                cost: path.cost,
                works: works(path),
            })
            .collect();
        let waits = report.waiting > 0 || current.membership.server_backlog.load(Relaxed);
        let level = current.cost.update(time::now(), &paths, waits);
        current.membership.level.store(level, Relaxed);
        for path in &report.paths {
            let waits = path.cost > level;
            if waits != path.standby {
                info!(
                    interface = path.name,
                    standby = waits,
                    "uplink standby changed"
                );
                let id = PathId::all().nth(path.index).expect("a path's index");
                current
                    .membership
                    .handle
                    .send_command(Command::Standby(id, waits))
                    .await;
            }
        }
        let any_delivered = report
            .paths
            .iter()
            .any(|path| path.figures.unacknowledged < SILENCE);
        let now = std::time::Instant::now();
        let silent_since = if any_delivered {
            None
        } else {
            Some(current.silent_since.unwrap_or(now))
        };
        current.silent_since = silent_since;
        let lost =
            silent_since.is_some_and(|since| !report.paths.is_empty() || now - since >= SILENCE);
        let paths = report
            .paths
            .iter()
            .map(|path| (path.name.clone(), path.standby))
            .collect();
        let shape = (paths, report.mtu);
        let shape_changed = std::mem::replace(&mut current.shape, shape.clone()) != shape;
        if write {
            self.usage.add(&report.paths, SystemTime::now());
            self.usage.write();
            self.follow_uplinks();
        }
        if write || shape_changed {
            self.show().await;
        }
        lost
    }

    /// Re-establishes all connections of the session.
    fn reconnect(&mut self) {
        if let Some(current) = &mut self.current {
            current.members.clear();
            self.follow_uplinks();
        }
    }
}

//! What the client does while it has a session.

use super::attach::Trouble;
use super::cost::Candidate;
use super::search::{Found, finished, search};
use super::{Client, LOOK_EVERY, PAUSES, STATUS_EVERY};
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

/// For how long nothing may be heard over any path before other servers are tried as well.
const SILENCE: Duration = Duration::from_secs(1);

/// A path that has been silent for this long does not count as one that works.
const HICCUP: Duration = Duration::from_millis(500);

/// The pause after another client of the same name has taken the session: two of them are not to take turns.
const SUPERSEDED: Duration = Duration::from_secs(30);

impl Client {
    /// Stays with the session until there is another server to go to, or none at all.
    pub(super) async fn hold(&mut self) -> Found {
        let mut look = interval(LOOK_EVERY);
        let mut looks = 0;
        let mut forgotten = false;
        let mut search: Option<tokio::task::JoinHandle<Found>> = None;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut not_before = Instant::now();
        let mut was_silent = false;
        loop {
            let Some(current) = &mut self.current else {
                return None;
            };
            tokio::select! {
                Ok(()) = self.uplinks.changed() => self.follow_uplinks(),
                Some(trouble) = current.trouble.recv() => {
                    let own = current.membership.server.clone();
                    warn!(server = own.name, "{trouble}");
                    if trouble == Trouble::Superseded {
                        self.end();
                        self.show_while(sleep(SUPERSEDED)).await;
                        return None;
                    }
                    forgotten |= trouble == Trouble::Forgotten;
                    let elsewhere = |server: &ServerEntry| trouble != Trouble::Draining || *server != own;
                    if search.is_none() {
                        let servers = self.servers.get().await.into_iter();
                        search = Some(self.begin_search(servers.filter(elsewhere).collect()));
                    }
                }
                found = finished(&mut search) => {
                    search = None;
                    let over = forgotten || current.membership.handle.is_over();
                    match found {
                        Some((_, server)) if server == current.membership.server && !over => self.reconnect(),
                        Some(found) => return Some(found),
                        None if over => return None,
                        None => not_before = Instant::now() + backoff.after_failure(1.0),
                    }
                }
                _ = look.tick() => {
                    looks += 1;
                    let silent = self.look(looks % STATUS_EVERY == 0).await;
                    if silent && !was_silent {
                        info!("nothing is heard over any uplink: trying all servers");
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

    /// Looks at the session; whether nothing has been heard over any of its paths for too long.
    async fn look(&mut self, write: bool) -> bool {
        let Some(current) = &mut self.current else {
            return false;
        };
        let Some(report) = current.membership.handle.report().await else {
            return true;
        };
        let works = |path: &PathReport| path.figures.unanswered < HICCUP;
        let paths: Vec<_> = report
            .paths
            .iter()
            .map(|path| Candidate {
                cost: path.cost,
                works: works(path),
            })
            .collect();
        let waits = report.waiting > 0 || current.membership.wanted.load(Relaxed);
        let level = current.cost.update(time::now(), &paths, waits);
        current.membership.level.store(level, Relaxed);
        for path in &report.paths {
            let waits = path.cost > level;
            if waits != path.standby {
                info!(interface = path.name, waits, "uplink of a higher cost");
                let id = PathId::all().nth(path.index).expect("a path's index");
                current
                    .membership
                    .handle
                    .tell(Command::Standby(id, waits))
                    .await;
            }
        }
        let heard = report
            .paths
            .iter()
            .any(|path| path.figures.unanswered < SILENCE);
        let now = std::time::Instant::now();
        let silent_since = if heard {
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
        let is_news = std::mem::replace(&mut current.shape, shape.clone()) != shape;
        if write {
            self.usage.add(&report.paths, SystemTime::now());
            self.usage.write();
            self.follow_uplinks();
        }
        if write || is_news {
            self.show().await;
        }
        lost
    }

    /// Makes all connections of the session anew.
    fn reconnect(&mut self) {
        if let Some(current) = &mut self.current {
            current.members.clear();
            self.follow_uplinks();
        }
    }
}

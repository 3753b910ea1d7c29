//! The thread that asks the controller for the secret again and again.

use crate::{ControlledTrack, Error, Secret};
use hawser_client::RenewingClient;
use hawser_io::failures::{Change, Failures};
use hawser_model::track::{Serving, TrackKey, TrackRole, TrackSource, TrackUse};
use hawser_objects::{AccessSecret, TrackSecret};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep_until, timeout};
use zeroize::Zeroizing;

/// The longest time between two requests, whatever the controller says.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest time between two requests.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two requests while no controller answers.
const RETRY: Duration = Duration::from_secs(5);

/// The number of refusals in a row that are believed. A certificate may just be replaced, and a controller
/// may lag behind another one.
const REFUSALS: u32 = 3;

/// The time for which a controller that has an older secret is not believed.
const LAGGING: Duration = Duration::from_secs(60);

/// The longest time for which the end of a program waits until the controller knows of it.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_POLL: Duration = Duration::from_millis(5);

/// The thread and its owner tell each other this.
#[derive(Debug, Default)]
struct Shared {
    /// The secret that opens sessions.
    access: Option<AccessSecret>,
    /// The secret, or the error, that the owner has not taken yet.
    secret: Option<Result<Secret, Error>>,
    /// The sources that the owner has not taken yet.
    sources: Option<Vec<TrackSource>>,
    /// Where the owner serves the track.
    serving: Option<Serving>,
}

/// The thread. When this is dropped, the controller is told that the owner no longer serves the track.
#[derive(Debug)]
pub(crate) struct Follower {
    shared: Arc<Mutex<Shared>>,
    /// `None` ends the thread.
    ask_now: Option<Sender<()>>,
    thread: JoinHandle<()>,
}

impl Follower {
    /// Gets the secret, and starts the thread.
    pub(crate) fn start(track: ControlledTrack, role: TrackRole) -> Result<(Self, Secret), Error> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut asking = Asking::new(track, role);
        let first = runtime.block_on(asking.ask(None))?;
        let secret = secret(&first, role)?;
        let (ask_now, asked) = channel(1);
        let shared: Arc<Mutex<Shared>> = Arc::default();
        shared.lock().sources = Some(first.sources.clone());
        shared.lock().access = Some(access(&secret, role));
        let following = Following {
            runtime,
            asking,
            asked,
            known: Known::new(secret.clone(), first.number),
            interval: interval(&first),
            may_serve: first.role.serves_as(role),
            sources: first.sources,
            announced: None,
            shared: Arc::clone(&shared),
        };
        if !following.may_serve && role == TrackRole::Relay {
            tracing::warn!(
                "the controller sends no viewers to this relay, because its node is a reader of the track: an \
                 operator changes that with `hawser ctl track set TRACK --add-relay NODE`"
            );
        }
        let thread = thread::Builder::new()
            .name("keyring".to_owned())
            .spawn(move || following.run())?;
        let follower = Follower {
            shared,
            ask_now: Some(ask_now),
            thread,
        };
        Ok((follower, secret))
    }

    pub(crate) fn poll(&self) -> Result<Option<Secret>, Error> {
        self.shared.lock().secret.take().transpose()
    }

    pub(crate) fn poll_sources(&self) -> Option<Vec<TrackSource>> {
        self.shared.lock().sources.take()
    }

    pub(crate) fn serve(&self, serving: Option<Serving>) {
        let before = std::mem::replace(&mut self.shared.lock().serving, serving);
        let address = |serving: Option<Serving>| serving.map(|serving| serving.address);
        if address(before) != address(serving) {
            self.ask_now();
        }
    }

    pub(crate) fn ask_now(&self) {
        if let Some(ask_now) = &self.ask_now {
            // If a request for that waits already, it is enough.
            let _ = ask_now.try_send(());
        }
    }

    pub(crate) fn access(&self) -> Option<AccessSecret> {
        self.shared.lock().access.clone()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.ask_now = None;
        let (is_served, begun) = (self.shared.lock().serving.is_some(), Instant::now());
        while is_served && !self.thread.is_finished() && begun.elapsed() < FAREWELL {
            thread::sleep(FAREWELL_POLL);
        }
    }
}

struct Following {
    runtime: Runtime,
    asking: Asking,
    asked: Receiver<()>,
    known: Known,
    interval: Duration,
    /// Whether the node is announced to others.
    may_serve: bool,
    /// The sources that the controller named last.
    sources: Vec<TrackSource>,
    /// The address that the controller may tell others.
    announced: Option<Serving>,
    shared: Arc<Mutex<Shared>>,
}

/// The secret in force.
struct Known {
    secret: Secret,
    number: u32,
    /// Since when the controller says that an older one is in force.
    older_since: Option<Instant>,
}

impl Following {
    /// Asks until the [`Follower`] is dropped, or the controller refuses several times in a row.
    fn run(mut self) {
        self.follow();
        if let Some(announced) = self.announced {
            let said = self.asking.ask(Some(announced.withdrawn()));
            // If this fails, the controller forgets it after the time of its lease.
            let _ = (self.runtime).block_on(async { timeout(FAREWELL, said).await });
        }
    }

    fn follow(&mut self) {
        let mut failures = Failures::default();
        let mut refusals = 0;
        while self.runtime.block_on(wait(self.interval, &mut self.asked)) {
            let serving = self.shared.lock().serving.filter(|_| self.may_serve);
            // The controller forgets by itself where the track was served before, if that is another address.
            let said = serving.or(self.announced.map(Serving::withdrawn));
            let answer = self.runtime.block_on(self.asking.ask_serving(said));
            if serving.is_some() || answer.is_ok() {
                self.announced = serving;
            }
            let outcome = answer.and_then(|key| self.take(&key));
            let is_refused = outcome.as_ref().is_err_and(is_refusal);
            refusals = if is_refused { refusals + 1 } else { 0 };
            if refusals == REFUSALS {
                self.shared.lock().secret = outcome.err().map(Err);
                if self.asking.role != TrackRole::Relay {
                    return;
                }
                // A relay has other broadcasts, and may be allowed this one again.
                self.known = Known::new(Secret::default(), 0);
                self.interval = MAX_INTERVAL;
                continue;
            }
            if outcome.is_err() {
                self.interval = if is_refused { MIN_INTERVAL } else { RETRY };
            }
            match failures.record(outcome) {
                Some(Change::Failed(error)) => {
                    tracing::warn!("{error}; the secret known so far stays in force");
                }
                Some(Change::Recovered) => tracing::info!("the controller answers again"),
                None => {}
            }
        }
    }

    /// Takes an answer of the controller.
    fn take(&mut self, key: &TrackKey) -> Result<(), Error> {
        self.interval = interval(key);
        self.may_serve = key.role.serves_as(self.asking.role);
        if self.sources != key.sources {
            self.sources.clone_from(&key.sources);
            self.shared.lock().sources = Some(key.sources.clone());
        }
        let secret = secret(key, self.asking.role)?;
        if secret == self.known.secret {
            self.known.older_since = None;
        } else if self.known.is_replaced_by(key.number) {
            tracing::info!(track = %key.track, number = key.number, "the secret was replaced");
            self.known = Known::new(secret.clone(), key.number);
            let mut shared = self.shared.lock();
            shared.access = Some(access(&secret, self.asking.role));
            shared.secret = Some(Ok(secret));
        }
        Ok(())
    }
}

impl Known {
    fn new(secret: Secret, number: u32) -> Self {
        Known {
            secret,
            number,
            older_since: None,
        }
    }

    /// Returns whether another secret of this number is in force. An older one is only if the controller
    /// goes on to say so: one that lags behind may still have it.
    fn is_replaced_by(&mut self, number: u32) -> bool {
        if number >= self.number {
            return true;
        }
        let since = *self.older_since.get_or_insert_with(|| {
            tracing::warn!(
                number,
                known = self.number,
                "the controller has an older secret"
            );
            Instant::now()
        });
        since.elapsed() >= LAGGING
    }
}

/// Waits until the next request; returns `false` if there is none any more.
async fn wait(interval: Duration, asked: &mut Receiver<()>) -> bool {
    let begin = tokio::time::Instant::now();
    let mut due = begin + interval;
    loop {
        tokio::select! {
            () = sleep_until(due) => return true,
            asked = asked.recv() => match asked {
                Some(()) => due = due.min(begin + MIN_INTERVAL),
                None => return false,
            },
        }
    }
}

fn interval(key: &TrackKey) -> Duration {
    let interval = Duration::from_millis(key.ask_every_ms.into());
    interval.clamp(MIN_INTERVAL, MAX_INTERVAL)
}

/// Returns the secret that a role needs. A node that may watch may also relay.
fn secret(key: &TrackKey, role: TrackRole) -> Result<Secret, Error> {
    let mut secret = Zeroizing::new([0; 32]);
    hex::decode_to_slice(&key.secret, &mut *secret)
        .map_err(|_| Error::NoSecret(key.track.clone()))?;
    let is_whole = key.role.includes(TrackRole::Reader);
    if role == TrackRole::Relay && is_whole {
        let access = TrackSecret::new(*secret).access();
        secret = access.to_bytes();
    }
    Ok(secret)
}

/// Returns what opens sessions.
fn access(secret: &Secret, role: TrackRole) -> AccessSecret {
    match role {
        TrackRole::Relay => AccessSecret::new(**secret),
        TrackRole::Writer | TrackRole::Reader => TrackSecret::new(**secret).access(),
    }
}

/// Returns whether the controller says that the node must not have the secret.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::NoWriter { .. } | Error::OnlyRelay { .. } => true,
        Error::Controller { source, .. } => matches!(source.status(), Some(401 | 403 | 404)),
        Error::File(_) | Error::NoSecret(_) | Error::Thread(_) => false,
    }
}

/// The requests of a node.
struct Asking {
    track: ControlledTrack,
    role: TrackRole,
    client: RenewingClient,
    /// Whether the controller has refused to name this program to others.
    is_unnamed: bool,
}

impl Asking {
    fn new(track: ControlledTrack, role: TrackRole) -> Self {
        Asking {
            client: RenewingClient::new(&track.node, &track.controllers),
            track,
            role,
            is_unnamed: false,
        }
    }

    /// Says where the track is served, and asks for the secret. If the controller does not name this program to others, it
    /// still gets the secret.
    async fn ask_serving(&mut self, serving: Option<Serving>) -> Result<TrackKey, Error> {
        let answer = self.ask(serving).await;
        let Err(Error::Controller { source, .. }) = &answer else {
            self.is_unnamed &= serving.is_none();
            return answer;
        };
        if serving.is_none() || !matches!(source.status(), Some(403 | 422)) {
            return answer;
        }
        if !std::mem::replace(&mut self.is_unnamed, true) {
            tracing::warn!("the controller sends no viewers here: {source}");
        }
        self.ask(None).await
    }

    /// Asks for the secret, and says where the track is served. If the controller refuses the certificate, it is read
    /// again, because the agent of the machine may have replaced it.
    async fn ask(&mut self, serves: Option<Serving>) -> Result<TrackKey, Error> {
        let is_new = self.client.node().is_none();
        let what = TrackUse {
            role: self.role,
            serves,
        };
        let mut outcome = self.try_ask(&what).await;
        let status = outcome.as_ref().err().and_then(|error| error.status());
        if !is_new && matches!(status, Some(401 | 403)) {
            self.client.forget();
            outcome = self.try_ask(&what).await;
        }
        let track = &self.track.track;
        let key = outcome.map_err(|source| {
            self.client.forget();
            Error::Controller {
                track: track.clone(),
                source,
            }
        })?;
        self.client.answered();
        let Some(node) = self.client.node().filter(|_| !key.role.includes(self.role)) else {
            return Ok(key);
        };
        let (track, node) = (track.clone(), node.clone());
        match key.role {
            TrackRole::Relay => Err(Error::OnlyRelay { track, node }),
            TrackRole::Writer | TrackRole::Reader => Err(Error::NoWriter { track, node }),
        }
    }

    async fn try_ask(&mut self, what: &TrackUse) -> Result<TrackKey, hawser_client::Error> {
        let client = self.client.client().await?;
        client.use_track(&self.track.track, what).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_lags_behind_is_not_believed_at_once() {
        let mut known = Known::new(Secret::default(), 5);
        assert!(!known.is_replaced_by(4));
        assert!(known.is_replaced_by(6));
        known.older_since = Instant::now().checked_sub(LAGGING);
        assert!(known.is_replaced_by(4));
    }

    #[test]
    fn a_secret_that_is_none_is_refused_without_being_shown() {
        let key = |secret: String| TrackKey {
            track: "stage".parse().unwrap(),
            role: TrackRole::Reader,
            number: 1,
            secret,
            ask_every_ms: 10,
            sources: Vec::new(),
        };
        let valid = key("5e".repeat(32));
        assert_eq!(*secret(&valid, TrackRole::Reader).unwrap(), [0x5e; 32]);
        let access = TrackSecret::new([0x5e; 32]).access().to_bytes();
        assert_eq!(*secret(&valid, TrackRole::Relay).unwrap(), *access);
        let of_relay = TrackKey {
            role: TrackRole::Relay,
            ..valid.clone()
        };
        assert_eq!(*secret(&of_relay, TrackRole::Relay).unwrap(), [0x5e; 32]);
        assert_eq!(interval(&valid), MIN_INTERVAL);
        for text in ["", "5e", &"5e".repeat(33), &"no".repeat(32)] {
            let refused = secret(&key(text.to_owned()), TrackRole::Reader);
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("stage") && !error.contains("5e"), "{error}");
        }
    }
}

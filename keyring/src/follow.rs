//! The thread that asks the controller for the secret again and again.

use crate::{ControlledTrack, Error, Secret};
use hawser_client::{Controller, Identity, NodeClient};
use hawser_control::track::{TrackKey, TrackRole};
use hawser_io::failures::{Change, Failures};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;
use zeroize::Zeroizing;

/// The longest time between two requests, whatever the controller says.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest time between two requests.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two requests while no controller answers.
const RETRY: Duration = Duration::from_secs(5);

/// What the thread has learned and nobody has taken yet.
type News = Option<Result<Secret, Error>>;

/// The thread, which ends soon after this is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    news: Arc<Mutex<News>>,
    ask_now: Sender<()>,
}

impl Follower {
    /// Gets the secret, and starts the thread.
    pub(crate) fn start(track: ControlledTrack, role: TrackRole) -> Result<(Self, Secret), Error> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut asking = Asking {
            track,
            role,
            session: None,
        };
        let first = runtime.block_on(asking.ask())?;
        let secret = secret(&first)?;
        let (ask_now, asked) = channel(1);
        let news: Arc<Mutex<News>> = Arc::default();
        let following = Following {
            runtime,
            asking,
            asked,
            known: secret.clone(),
            interval: interval(&first),
            news: Arc::clone(&news),
        };
        thread::Builder::new()
            .name("keyring".to_owned())
            .spawn(move || following.run())?;
        Ok((Follower { news, ask_now }, secret))
    }

    pub(crate) fn poll(&self) -> Result<Option<Secret>, Error> {
        self.news.lock().take().transpose()
    }

    pub(crate) fn ask_now(&self) {
        // If a request for that waits already, it is enough.
        let _ = self.ask_now.try_send(());
    }
}

struct Following {
    runtime: Runtime,
    asking: Asking,
    asked: Receiver<()>,
    known: Secret,
    interval: Duration,
    news: Arc<Mutex<News>>,
}

impl Following {
    /// Asks until the [`Follower`] is dropped, or the controller refuses.
    fn run(mut self) {
        let mut failures = Failures::default();
        while self.runtime.block_on(wait(self.interval, &mut self.asked)) {
            let answer = self.runtime.block_on(self.asking.ask());
            let outcome = answer.and_then(|key| self.take(&key));
            if let Err(error) = &outcome
                && is_refusal(error)
            {
                let track = &self.asking.track.track;
                tracing::error!(%track, "{error}");
                *self.news.lock() = outcome.err().map(Err);
                return;
            }
            if outcome.is_err() {
                self.interval = RETRY;
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
        let secret = secret(key)?;
        if secret != self.known {
            tracing::info!(track = %key.track, number = key.number, "the secret was replaced");
            self.known = secret.clone();
            *self.news.lock() = Some(Ok(secret));
        }
        Ok(())
    }
}

/// Waits until the next request; returns `false` if there is none any more.
async fn wait(interval: Duration, asked: &mut Receiver<()>) -> bool {
    sleep(MIN_INTERVAL).await;
    tokio::select! {
        () = sleep(interval.saturating_sub(MIN_INTERVAL)) => !asked.is_closed(),
        asked = asked.recv() => asked.is_some(),
    }
}

fn interval(key: &TrackKey) -> Duration {
    let interval = Duration::from_millis(key.ask_every_ms.into());
    interval.clamp(MIN_INTERVAL, MAX_INTERVAL)
}

fn secret(key: &TrackKey) -> Result<Secret, Error> {
    let mut secret = Zeroizing::new([0; 32]);
    match hex::decode_to_slice(&key.secret, &mut *secret) {
        Ok(()) => Ok(secret),
        Err(_) => Err(Error::NoSecret(key.track.clone())),
    }
}

/// Returns whether the controller says that the node must not have the secret.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::NoWriter { .. } => true,
        Error::Controller { source, .. } => matches!(source.status(), Some(401 | 403 | 404)),
        Error::File(_) | Error::NoSecret(_) | Error::Thread(_) => false,
    }
}

/// The requests of a node.
struct Asking {
    track: ControlledTrack,
    role: TrackRole,
    session: Option<Session>,
}

/// A client of the controller, and the identity that it acts for.
struct Session {
    client: NodeClient,
    identity: Identity,
}

impl Asking {
    /// Asks for the secret. The certificate is read again if the controller refuses it, because the agent
    /// of the machine may have replaced it.
    async fn ask(&mut self) -> Result<TrackKey, Error> {
        let is_new = self.session.is_none();
        let mut outcome = self.try_ask().await;
        if !is_new && outcome.is_err() {
            self.session = None;
            outcome = self.try_ask().await;
        }
        let track = &self.track.track;
        let key = outcome.map_err(|source| Error::Controller {
            track: track.clone(),
            source,
        })?;
        match (self.role, key.role, &self.session) {
            (TrackRole::Writer, TrackRole::Reader, Some(session)) => Err(Error::NoWriter {
                track: track.clone(),
                node: session.identity.node().clone(),
            }),
            _ => Ok(key),
        }
    }

    async fn try_ask(&mut self) -> Result<TrackKey, hawser_client::Error> {
        let ControlledTrack {
            track,
            controllers,
            node,
        } = &self.track;
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Session::of(Identity::load(node)?, controllers)?,
        };
        if is_renewed_by_nobody(&session.identity) {
            session = Session::of(session.client.renew(node).await?, controllers)?;
            tracing::info!(node = %session.identity.node(), "certificate renewed");
        }
        let session = self.session.insert(session);
        session.client.track_key(track).await
    }
}

impl Session {
    fn of(identity: Identity, controllers: &[Controller]) -> Result<Self, hawser_client::Error> {
        let client = NodeClient::new(controllers, &identity)?;
        Ok(Session { client, identity })
    }
}

/// Returns whether half of the time is over in which an agent on this machine renews the certificate.
fn is_renewed_by_nobody(identity: &Identity) -> bool {
    let (from, until) = (identity.renew_at(), identity.expires());
    let time = until.duration_since(from).unwrap_or_default();
    SystemTime::now() > from + time / 2
}

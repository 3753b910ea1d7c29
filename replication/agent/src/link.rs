//! The thread that talks to the controller. It passes the messages of the controller to the main
//! loop, and sends one report after the other. It makes no decisions about traffic.

use crate::config::ControllerConfig;
use anyhow::{Context, Result};
use hawser_client::{
    Backoff, Controller, Error, Identity, NodeClient, NodeMessage, NodeStream, pause_within,
};
use hawser_model::access::TrustedAuthorities;
use hawser_model::node::{Registration, Report};
use hawser_model::pair::NodeKeys;
use hawser_node::{Connection, Message};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc as reports;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// Pauses between attempts to reach a controller.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// Pauses between attempts after the controller refused the node, which an operator has to resolve.
const RETRY_REFUSED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Pauses between attempts to renew the certificate. Renewal starts when a third of its lifetime is
/// left.
const RETRY_RENEWAL: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(3600));

/// The time for which a renewed certificate is not renewed again because a controller refuses it: the
/// clocks of controllers may differ.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// Timeout of the resolution of a controller's name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to the main loop.
#[derive(Debug)]
pub(crate) enum LinkMessage {
    /// The addresses of the controllers, sent before the thread connects to them.
    Controllers(BTreeSet<SocketAddr>),
    /// A message to the node.
    Node(Box<Message>),
}

/// The main loop's handle of the thread. The thread runs until the process exits.
#[derive(Debug)]
pub(crate) struct Link {
    messages: mpsc::Receiver<LinkMessage>,
    reports: reports::Sender<Report>,
    registration: watch::Sender<Registration>,
    keys: watch::Sender<Option<NodeKeys>>,
}

impl Link {
    /// Starts the thread, which connects to the controller.
    pub(crate) fn start(config: ControllerConfig, registration: Registration) -> Result<Self> {
        let (to_loop, messages) = mpsc::channel();
        // One report at a time: the next one is made when this one is delivered, from the state at
        // that time.
        let (reports, from_loop) = reports::channel(1);
        let (registration, registered) = watch::channel(registration);
        let (keys, stated) = watch::channel(None);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot start the controller's client")?;
        let mut client = Client {
            config,
            registered,
            to_loop,
            from_loop,
            stated,
            identity: None,
            renewed: None,
            reconnect_within: Duration::ZERO,
        };
        let thread = thread::Builder::new().name("controller".to_owned());
        thread
            .spawn(move || runtime.block_on(client.run()))
            .context("cannot start a thread")?;
        Ok(Link {
            messages,
            reports,
            registration,
            keys,
        })
    }

    /// Waits for the next message, up to `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<LinkMessage> {
        match self.messages.recv_timeout(timeout) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // The thread has panicked, which is in the log. The last policies stay in force.
                thread::sleep(timeout);
                None
            }
        }
    }

    /// Sends a report. Call this after [`Message::Ready`].
    pub(crate) fn report(&self, report: Report) {
        // The channel has room after `Ready`. If the connection was lost since, the thread sends
        // `ReportLost`.
        let _ = self.reports.try_send(report);
    }

    /// Registers the node again if its registration has changed.
    pub(crate) fn register(&self, registration: Registration) {
        self.registration.send_if_modified(|known| {
            let has_changed = *known != registration;
            *known = registration;
            has_changed
        });
    }

    /// States the node's keys, now and on every connection.
    pub(crate) fn state_keys(&self, keys: NodeKeys) {
        self.keys.send_replace(Some(keys));
    }
}

/// The reason that a session ended without an error.
enum Ended {
    /// The controller closed the stream.
    ByController,
    /// The certificate was renewed, or the node trusts another authority.
    Renewed,
}

struct Client {
    config: ControllerConfig,
    /// The last registration, without the authorities that the node trusts.
    registered: watch::Receiver<Registration>,
    to_loop: mpsc::Sender<LinkMessage>,
    from_loop: reports::Receiver<Report>,
    /// The last statement about the node's keys.
    stated: watch::Receiver<Option<NodeKeys>>,
    identity: Option<Identity>,
    /// When the thread has renewed the certificate.
    renewed: Option<Instant>,
    /// The time within which the node returns after the connection is lost; zero before there is
    /// one.
    reconnect_within: Duration,
}

impl Client {
    async fn run(&mut self) {
        let (mut backoff, mut refused_backoff) = (RETRY, RETRY_REFUSED);
        loop {
            let (connection, backoff) = match self.session(&mut backoff, &mut refused_backoff).await
            {
                Ok(Ended::Renewed) => continue,
                Ok(Ended::ByController) => {
                    let why = "the controller closed the connection".to_owned();
                    (Connection::Unreachable(why), &mut backoff)
                }
                Err(error) if is_refusal(&error) => {
                    let connection = Connection::Refused(self.explain(&error));
                    (connection, &mut refused_backoff)
                }
                Err(error @ (Error::Credentials { .. } | Error::File { .. })) => {
                    let why = format!("the node's certificate cannot be used: {error}");
                    (Connection::Unreachable(why), &mut refused_backoff)
                }
                Err(error) => {
                    let connection = Connection::Unreachable(self.explain(&error));
                    (connection, &mut backoff)
                }
            };
            self.send(Message::Connection(connection));
            pause_within(std::mem::take(&mut self.reconnect_within)).await;
            backoff.pause().await;
        }
    }

    /// Runs a session, from the registration to the loss of the connection.
    async fn session(
        &mut self,
        backoff: &mut Backoff,
        refused_backoff: &mut Backoff,
    ) -> Result<Ended, Error> {
        let (client, identity) = match self.register().await {
            Ok(registered) => registered,
            Err(error) => return self.renew_refused(error).await,
        };
        let mut stream = client.stream().await?;
        (*backoff, *refused_backoff) = (RETRY, RETRY_REFUSED);
        self.send(Message::Connection(Connection::Connected));
        let Client {
            to_loop,
            from_loop,
            registered,
            stated,
            config,
            reconnect_within,
            renewed,
            ..
        } = self;
        let mut in_flight = false;
        let ended = tokio::select! {
            ended = listen(&mut stream, to_loop, &config.state, &identity, reconnect_within) => ended,
            ended = report(&client, to_loop, from_loop, &mut in_flight) => ended,
            ended = register(&client, &identity, registered) => ended,
            ended = state_keys(&client, stated) => ended,
            ended = renew(&client, &identity, config, renewed) => ended,
        };
        if in_flight {
            send(to_loop, Message::ReportLost);
        }
        ended
    }

    /// Registers the node with a controller. Passes on the addresses of the controllers before that.
    async fn register(&mut self) -> Result<(NodeClient, Identity), Error> {
        // Loaded for each session: the node may have been enrolled again.
        let identity = self
            .identity
            .insert(Identity::load(&self.config.state)?)
            .clone();
        let addresses = addresses(&self.config.urls).await;
        if !addresses.is_empty() {
            // The main loop runs until the process exits.
            let _ = self.to_loop.send(LinkMessage::Controllers(addresses));
        }
        let client = NodeClient::new(&self.config.urls, &identity)?;
        let registration = self.registered.borrow_and_update().clone();
        client
            .register(&with_authorities(registration, &identity))
            .await?;
        Ok((client, identity))
    }

    /// Renews the certificate if the controller's date is the reason of `error`, which the controller
    /// allows for some time.
    async fn renew_refused(&mut self, error: Error) -> Result<Ended, Error> {
        let is_recent = |at: Instant| at.elapsed() < RENEW_AGAIN;
        if error.status() != Some(401) || self.renewed.is_some_and(is_recent) {
            return Err(error);
        }
        let identity = Identity::load(&self.config.state)?;
        let client = NodeClient::new(&self.config.urls, &identity)?;
        if client.renew(&self.config.state).await.is_err() {
            return Err(error);
        }
        info!("certificate renewed, which had expired by the controller's clock");
        self.renewed = Some(Instant::now());
        Ok(Ended::Renewed)
    }

    fn explain(&self, error: &Error) -> String {
        match self.identity.as_ref().and_then(Identity::outside_validity) {
            Some(why) => format!(
                "{why}; set the clock if it is wrong, or else enrol the node again ({error})"
            ),
            None => error.to_string(),
        }
    }

    fn send(&self, message: Message) {
        send(&self.to_loop, message);
    }
}

fn send(to_loop: &mpsc::Sender<LinkMessage>, message: Message) {
    // The main loop runs until the process exits.
    let _ = to_loop.send(LinkMessage::Node(Box::new(message)));
}

/// Returns the addresses of the controllers whose names can be resolved. The client reports the
/// other ones.
async fn addresses(controllers: &[Controller]) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for controller in controllers {
        let controller = controller.clone();
        let resolved = tokio::task::spawn_blocking(move || controller.addresses());
        if let Ok(Ok(Ok(addresses))) = tokio::time::timeout(RESOLVE_TIMEOUT, resolved).await {
            found.extend(addresses);
        }
    }
    found
}

/// Passes on the messages of the controller until it closes the stream.
async fn listen(
    stream: &mut NodeStream,
    to_loop: &mpsc::Sender<LinkMessage>,
    state: &Path,
    identity: &Identity,
    reconnect_within: &mut Duration,
) -> Result<Ended, Error> {
    loop {
        match stream.next().await? {
            Some(NodeMessage::Assignment(assignment)) => {
                *reconnect_within = Duration::from_millis(assignment.reconnect_within_ms.into());
                send(to_loop, Message::Assignment(assignment));
            }
            Some(NodeMessage::Policy(policy)) => send(to_loop, Message::Policy(policy)),
            Some(NodeMessage::Authority(authorities)) => {
                // The next session trusts them, and reports that to the controller.
                if trust(state, &authorities) && !identity.trusts(&authorities) {
                    return Ok(Ended::Renewed);
                }
            }
            Some(NodeMessage::Ping) => {}
            None => return Ok(Ended::ByController),
        }
    }
}

/// Stores the authorities to trust. Returns whether they have changed.
fn trust(state: &Path, authorities: &TrustedAuthorities) -> bool {
    let stored = Identity::trust(state, authorities).inspect_err(|error| {
        error!("cannot store the authorities to trust, retrying with the next connection: {error}");
    });
    let has_changed = stored.unwrap_or(false);
    if has_changed {
        info!("the trusted authorities have changed");
    }
    has_changed
}

/// Sends the reports of the main loop. `in_flight` is true while one is not acknowledged.
async fn report(
    client: &NodeClient,
    to_loop: &mpsc::Sender<LinkMessage>,
    from_loop: &mut reports::Receiver<Report>,
    in_flight: &mut bool,
) -> Result<Ended, Error> {
    // Reports that were passed on while the last connection broke.
    while from_loop.try_recv().is_ok() {
        send(to_loop, Message::ReportLost);
    }
    loop {
        send(to_loop, Message::Ready);
        let Some(report) = from_loop.recv().await else {
            return Ok(Ended::ByController);
        };
        *in_flight = true;
        deliver(client, to_loop, &report).await?;
        *in_flight = false;
    }
}

/// Sends a report. That the controller rejects it is not an error: the same report would be
/// rejected again.
async fn deliver(
    client: &NodeClient,
    to_loop: &mpsc::Sender<LinkMessage>,
    report: &Report,
) -> Result<(), Error> {
    match client.report(report).await {
        Err(error) if !error.is_transient() && !is_refusal(&error) => {
            warn!("the controller rejected a report: {error}");
            send(to_loop, Message::ReportRejected);
            Ok(())
        }
        delivered => delivered,
    }
}

/// Registers the node again whenever its paths or uplinks change.
async fn register(
    client: &NodeClient,
    identity: &Identity,
    registered: &mut watch::Receiver<Registration>,
) -> Result<Ended, Error> {
    let send = async |registration| {
        client
            .register(&with_authorities(registration, identity))
            .await
    };
    state("the node's paths", registered, send).await
}

fn with_authorities(registration: Registration, identity: &Identity) -> Registration {
    Registration {
        authorities: identity.authority_digests(),
        ..registration
    }
}

/// States the node's keys, now and whenever they change.
async fn state_keys(
    client: &NodeClient,
    stated: &mut watch::Receiver<Option<NodeKeys>>,
) -> Result<Ended, Error> {
    stated.mark_changed();
    let send = async |keys: Option<NodeKeys>| {
        let Some(keys) = keys else { return Ok(()) };
        client.state_keys(&keys).await
    };
    state("the node's keys", stated, send).await
}

/// Sends a statement of the node whenever it changes. `what` describes it in the log.
async fn state<T: Clone>(
    what: &str,
    stated: &mut watch::Receiver<T>,
    send: impl AsyncFn(T) -> Result<(), Error>,
) -> Result<Ended, Error> {
    let mut backoff = RETRY;
    loop {
        // The main loop runs until the process exits.
        if stated.changed().await.is_err() {
            return std::future::pending().await;
        }
        let statement = stated.borrow_and_update().clone();
        match send(statement).await {
            Ok(()) => backoff = RETRY,
            Err(error) if is_refusal(&error) => return Err(error),
            Err(error) => {
                warn!("cannot state {what}, retrying: {error}");
                stated.mark_changed();
                backoff.pause().await;
            }
        }
    }
}

/// Renews the certificate when it is due, and returns then.
async fn renew(
    client: &NodeClient,
    identity: &Identity,
    config: &ControllerConfig,
    renewed: &mut Option<Instant>,
) -> Result<Ended, Error> {
    let serves = identity.serves(Duration::ZERO, *renewed);
    serves.over(tokio::time::sleep).await;
    let mut backoff = RETRY_RENEWAL;
    loop {
        match client.renew(&config.state).await {
            Ok(_) => {
                info!("certificate renewed");
                *renewed = Some(Instant::now());
                return Ok(Ended::Renewed);
            }
            Err(error) => warn!("cannot renew the certificate, retrying later: {error}"),
        }
        backoff.pause().await;
    }
}

/// Returns whether the controller refuses the node, or the node's own files are unusable.
fn is_refusal(error: &Error) -> bool {
    matches!(error.status(), Some(401 | 403))
}

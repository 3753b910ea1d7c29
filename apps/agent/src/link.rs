//! The thread that talks to the controller. It hands over what the controller says and takes one report after the other;
//! it decides nothing about traffic.

use crate::config::ControllerConfig;
use anyhow::{Context, Result};
use hawser_client::{Backoff, Controller, Error, Identity, NodeClient, NodeMessage};
use hawser_control::node::{Assignment, Registration, Report};
use hawser_control::resource::Policy;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc as reports;
use tracing::{info, warn};

/// Between attempts to reach a controller.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// Between attempts after the controller has said no: somebody has to do something first.
const RETRY_REFUSED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Between attempts to renew the certificate, for which a third of its life is left.
const RETRY_RENEWAL: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(3600));

/// How long the resolver may take over a controller's name.
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);

/// What the loop is told.
#[derive(Debug)]
pub(crate) enum Message {
    /// Where the controllers are, before they are talked to.
    Controllers(BTreeSet<SocketAddr>),
    /// The state of the connection has changed.
    Connection(Connection),
    /// Replaces the assignment before.
    Assignment(Assignment),
    /// Replaces the policy of its flow, if it is newer.
    Policy(Policy),
    /// The report before, if there was one, has arrived; another may be handed over.
    Ready,
    /// The report that was handed over may not have arrived.
    Unsent,
    /// The controller has refused what was handed over, and would again.
    NotTaken,
}

/// How the node stands with its controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Connection {
    /// Not yet known.
    Connecting,
    /// Registered; assignments and policies come as they are made.
    Connected,
    /// No controller can be reached, and why.
    Away(String),
    /// The controller does not let this node in, and why.
    Refused(String),
}

/// The loop's end of the thread. The thread ends with the process.
#[derive(Debug)]
pub(crate) struct Link {
    messages: mpsc::Receiver<Message>,
    reports: reports::Sender<Report>,
}

impl Link {
    /// Starts to connect.
    pub(crate) fn start(config: ControllerConfig, registration: Registration) -> Result<Self> {
        let (to_loop, messages) = mpsc::channel();
        // One: the next is made when this one has arrived, of what is known then.
        let (reports, from_loop) = reports::channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot start the controller's client")?;
        let mut talk = Talk {
            config,
            registration,
            to_loop,
            from_loop,
            identity: None,
        };
        let thread = thread::Builder::new().name("controller".to_owned());
        thread
            .spawn(move || runtime.block_on(talk.go_on()))
            .context("cannot start a thread")?;
        Ok(Link { messages, reports })
    }

    /// Waits for the next message, for so long at most.
    pub(crate) fn wait(&self, patience: Duration) -> Option<Message> {
        match self.messages.recv_timeout(patience) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // The thread has panicked, which is in the log. Traffic goes on by the last policy.
                thread::sleep(patience);
                None
            }
        }
    }

    /// Hands over a report, after [`Message::Ready`].
    pub(crate) fn report(&self, report: Report) {
        // Whoever asked for it has room. When the connection has been lost since, it says so.
        let _ = self.reports.try_send(report);
    }
}

/// Why a session ended without an error.
enum Ended {
    /// The controller ended the stream.
    ByController,
    /// There is another certificate now.
    Renewed,
}

struct Talk {
    config: ControllerConfig,
    registration: Registration,
    to_loop: mpsc::Sender<Message>,
    from_loop: reports::Receiver<Report>,
    identity: Option<Identity>,
}

impl Talk {
    async fn go_on(&mut self) {
        let (mut passing, mut refused) = (RETRY, RETRY_REFUSED);
        loop {
            match self.session(&mut passing, &mut refused).await {
                Ok(Ended::Renewed) => continue,
                Ok(Ended::ByController) => {
                    self.tell(Message::Connection(Connection::Away(
                        "it ended the connection".to_owned(),
                    )));
                    passing.pause().await;
                }
                Err(error) if is_refusal(&error) => {
                    self.tell(Message::Connection(Connection::Refused(
                        self.explain(&error),
                    )));
                    refused.pause().await;
                }
                Err(error) => {
                    self.tell(Message::Connection(Connection::Away(self.explain(&error))));
                    passing.pause().await;
                }
            }
        }
    }

    /// From registering to the loss of the connection.
    async fn session(
        &mut self,
        passing: &mut Backoff,
        refused: &mut Backoff,
    ) -> Result<Ended, Error> {
        // Read again every time: somebody may have enrolled the node anew.
        let identity = self
            .identity
            .insert(Identity::load(&self.config.state)?)
            .clone();
        let addresses = addresses(&self.config.urls).await;
        if !addresses.is_empty() {
            self.tell(Message::Controllers(addresses));
        }
        let client = NodeClient::new(&self.config.urls, &identity)?;
        client.register(&self.registration).await?;
        let mut stream = client.stream().await?;
        (*passing, *refused) = (RETRY, RETRY_REFUSED);
        let Talk {
            to_loop,
            from_loop,
            config,
            ..
        } = self;
        tell(to_loop, Message::Connection(Connection::Connected));

        let mut under_way = false;
        let listen = async {
            loop {
                match stream.next().await? {
                    Some(NodeMessage::Assignment(assignment)) => {
                        tell(to_loop, Message::Assignment(assignment));
                    }
                    Some(NodeMessage::Policy(policy)) => tell(to_loop, Message::Policy(policy)),
                    Some(NodeMessage::Ping) => {}
                    None => return Ok(Ended::ByController),
                }
            }
        };
        let report = report(&client, to_loop, from_loop, &mut under_way);
        let ended = tokio::select! {
            ended = listen => ended,
            ended = report => ended,
            ended = renew(&client, &identity, config) => ended,
        };
        if under_way {
            tell(to_loop, Message::Unsent);
        }
        ended
    }

    fn explain(&self, error: &Error) -> String {
        match &self.identity {
            Some(identity) if identity.expires() < SystemTime::now() => {
                format!("the node's certificate has expired; enrol it again ({error})")
            }
            _ => error.to_string(),
        }
    }

    fn tell(&self, message: Message) {
        tell(&self.to_loop, message);
    }
}

fn tell(to_loop: &mpsc::Sender<Message>, message: Message) {
    // The loop ends with the process only.
    let _ = to_loop.send(message);
}

/// Where the controllers are, as far as their names lead anywhere; the client complains about those that do not.
async fn addresses(controllers: &[Controller]) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for controller in controllers {
        let controller = controller.clone();
        let resolved = tokio::task::spawn_blocking(move || controller.addresses());
        if let Ok(Ok(Ok(addresses))) = tokio::time::timeout(RESOLVED_WITHIN, resolved).await {
            found.extend(addresses);
        }
    }
    found
}

/// Takes reports from the loop and sends them. `under_way` says whether one has not been answered.
async fn report(
    client: &NodeClient,
    to_loop: &mpsc::Sender<Message>,
    from_loop: &mut reports::Receiver<Report>,
    under_way: &mut bool,
) -> Result<Ended, Error> {
    // Handed over as the last connection broke.
    while from_loop.try_recv().is_ok() {
        tell(to_loop, Message::Unsent);
    }
    loop {
        tell(to_loop, Message::Ready);
        let Some(report) = from_loop.recv().await else {
            return Ok(Ended::ByController);
        };
        *under_way = true;
        match client.report(&report).await {
            Ok(()) => {}
            // The same words would be refused again.
            Err(error) if !error.is_passing() && !is_refusal(&error) => {
                warn!("the controller does not take a report: {error}");
                tell(to_loop, Message::NotTaken);
            }
            Err(error) => return Err(error),
        }
        *under_way = false;
    }
}

/// Ends when there is a new certificate.
async fn renew(
    client: &NodeClient,
    identity: &Identity,
    config: &ControllerConfig,
) -> Result<Ended, Error> {
    let left = identity
        .renew_at()
        .duration_since(SystemTime::now())
        .unwrap_or_default();
    tokio::time::sleep(left).await;
    let mut backoff = RETRY_RENEWAL;
    loop {
        match client.renew(&config.state).await {
            Ok(_) => {
                info!("the node has a new certificate");
                return Ok(Ended::Renewed);
            }
            Err(error) => warn!("the node's certificate could not be renewed: {error}"),
        }
        backoff.pause().await;
    }
}

/// Whether the controller, or this node's own files, stand against the node.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Refused(problem) => matches!(problem.status, 401 | 403),
        Error::Credentials { .. } | Error::File { .. } => true,
        _ => false,
    }
}

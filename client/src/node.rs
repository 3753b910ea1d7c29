use crate::error::Error;
use crate::identity::{Identity, PendingKey};
use crate::stream::Events;
use crate::tls::{self, Proof, credentials};
use crate::transport::{Controller, NOTHING, Transport};
use hawser_control::Name;
use hawser_control::access::{Caller, Certificate, Enrol, EnrolmentToken, InvalidToken, Renew};
use hawser_control::node::{Assignment, Registration, Report};
use hawser_control::resource::Policy;
use hawser_control::tunnel::{Admitted, ServerReport, Servers};
use reqwest::Method;
use std::path::Path;

/// Gets the certificate of `node` for a one-time token, and keeps it in `folder` as [`Identity::store`] does. The token
/// names the authority, so that the controller need not be trusted before.
///
/// The key is in the folder before anything is asked. When this fails, it may be tried again with the same token, even if
/// the controller has answered already.
///
/// # Errors
/// When the token is another node's or the folder cannot be written, in which case nothing is asked; when no controller of
/// that authority answers, or the token is void, used or too old.
pub async fn enrol_in(
    folder: &Path,
    node: &Name,
    controllers: &[Controller],
    token: &str,
) -> Result<Identity, Error> {
    let token: EnrolmentToken = token.parse()?;
    if token.node != *node {
        return Err(Error::AnotherNode {
            token: token.node,
            node: node.clone(),
        });
    }
    let pending = PendingKey::prepare(folder)?;
    let answer = ask(controllers, &token, Some(node), &pending).await?;
    Identity::keep(pending, folder, answer.certificate, answer.authority)
}

/// The same for a node that is simulated: its key is in memory alone, so a lost answer uses the token up.
///
/// # Errors
/// When no controller of the token's authority answers, or the token is void, used or too old.
pub async fn enrol(controllers: &[Controller], token: &str) -> Result<Identity, Error> {
    let pending = PendingKey::generate()?;
    let answer = ask(controllers, &token.parse()?, None, &pending).await?;
    Identity::new(pending.key_pem, answer.certificate, answer.authority)
}

async fn ask(
    controllers: &[Controller],
    token: &EnrolmentToken,
    node: Option<&Name>,
    pending: &PendingKey,
) -> Result<Certificate, Error> {
    let mut authority_digest = [0; 32];
    hex::decode_to_slice(&token.authority_sha256, &mut authority_digest)
        .map_err(|_| InvalidToken)?;
    let transport = Transport::new(controllers, tls::pinning(authority_digest)?, None)?;
    let body = Enrol {
        token: token.text(),
        csr: pending.csr.clone(),
        node: node.cloned(),
    };
    let answer: Certificate = transport
        .json(Method::POST, "/v1/enrol", Some(&body))
        .await?;
    if tls::digest_of_pem(&answer.authority)? != authority_digest {
        let reason = "it is not the one that the token names".to_owned();
        return Err(credentials("the authority's certificate", reason));
    }
    Ok(answer)
}

/// What a node asks of its controller and tells it. Stream and reports share one connection.
#[derive(Debug)]
pub struct NodeClient {
    transport: Transport,
    node: Name,
}

impl NodeClient {
    /// The first of the controllers that answers is asked.
    ///
    /// # Errors
    /// When the identity cannot be used or no controller is named.
    pub fn new(controllers: &[Controller], identity: &Identity) -> Result<Self, Error> {
        let tls = tls::trusting(&identity.authority_pem, Proof::Certificate(identity))?;
        Ok(NodeClient {
            transport: Transport::new(controllers, tls, None)?,
            node: identity.node.clone(),
        })
    }

    /// The node for which it acts.
    pub fn node(&self) -> &Name {
        &self.node
    }

    /// Whom the controller takes the node for.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn me(&self) -> Result<Caller, Error> {
        self.transport.json(Method::GET, "/v1/me", NOTHING).await
    }

    /// Says what the node has. First on every connection.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn register(&self, registration: &Registration) -> Result<(), Error> {
        self.transport
            .done(Method::PUT, &self.path("registration"), Some(registration))
            .await
    }

    /// Tells what happened, and that the node lives.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn report(&self, report: &Report) -> Result<(), Error> {
        self.transport
            .done(Method::POST, &self.path("reports"), Some(report))
            .await
    }

    /// What the node has to do: the assignment first, then every change.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn stream(&self) -> Result<NodeStream, Error> {
        let (response, controller) = self
            .transport
            .send(Method::GET, &self.path("stream"), NOTHING)
            .await?;
        Ok(NodeStream(Events::new(response, controller)))
    }

    /// Says that the node is a server of tunnels, and hears whom it is to let in.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn serve_tunnels(&self, report: &ServerReport) -> Result<Admitted, Error> {
        self.transport
            .json(Method::PUT, &self.path("tunnel-server"), Some(report))
            .await
    }

    /// Where the node may go as a client of tunnels.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn tunnel_servers(&self) -> Result<Servers, Error> {
        self.transport
            .json(Method::POST, &self.path("tunnel-client"), NOTHING)
            .await
    }

    /// Gets a new key and its certificate, and keeps both in `folder` as [`Identity::store`] does. The old certificate
    /// goes on until its end; make a new client of the new identity.
    ///
    /// # Errors
    /// When the folder cannot be written, in which case nothing is asked, or no controller answers, or it refuses.
    pub async fn renew(&self, folder: &Path) -> Result<Identity, Error> {
        let pending = PendingKey::prepare(folder)?;
        let body = Renew {
            csr: pending.csr.clone(),
        };
        let answer: Certificate = self
            .transport
            .json(Method::POST, &self.path("certificate"), Some(&body))
            .await?;
        Identity::keep(pending, folder, answer.certificate, answer.authority)
    }

    /// The next request goes to the next controller: for a caller that finds this one out of order.
    pub fn give_up_on_controller(&self) {
        self.transport.give_up_on_current();
    }

    fn path(&self, what: &str) -> String {
        format!("/v1/nodes/{}/{what}", self.node)
    }
}

/// What the controller says to a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeMessage {
    /// Replaces the assignment before, and the policies in force.
    Assignment(Assignment),
    /// Replaces the policy of its flow, if it is newer.
    Policy(Policy),
    /// The controller is still there.
    Ping,
}

/// Everything that the controller says to a node, as it happens.
pub struct NodeStream(Events);

impl NodeStream {
    /// The next message; none at the end of the stream, to be opened again.
    ///
    /// # Errors
    /// When the controller says why it ends the stream, the connection is lost, or nothing came for 45 s.
    pub async fn next(&mut self) -> Result<Option<NodeMessage>, Error> {
        while let Some(event) = self.0.next().await? {
            match event.event.as_str() {
                "assignment" => return Ok(Some(NodeMessage::Assignment(self.0.parse(&event)?))),
                "policy" => return Ok(Some(NodeMessage::Policy(self.0.parse(&event)?))),
                "ping" => return Ok(Some(NodeMessage::Ping)),
                "end" => return Err(Error::Ended(event.data)),
                // A newer controller may have more to say.
                _ => {}
            }
        }
        Ok(None)
    }
}

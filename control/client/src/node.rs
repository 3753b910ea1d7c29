use crate::error::{Error, credentials};
use crate::identity::{Identity, PendingKey};
use crate::stream::Events;
use crate::tls::{self, Proof};
use crate::transport::{Controller, NOTHING, Transport};
use hawser_model::Name;
use hawser_model::access::{
    Caller, Certificate, Enrol, EnrolmentToken, InvalidToken, Renew, TrustedAuthorities,
};
use hawser_model::node::{Assignment, Registration, Report};
use hawser_model::pair::NodeKeys;
use hawser_model::resource::Policy;
use hawser_model::track::{TrackKey, TrackUse};
use hawser_model::tunnel::{Admitted, ClientReport, ServerReport, Servers};
use hawser_units::Line;
use reqwest::Method;
use std::path::Path;

/// Obtains the certificate of `node` for a one-time token, and stores it in `folder` as
/// [`Identity::store`] does. The token contains the digest of the authority, so that the controller
/// need not be trusted beforehand.
///
/// The key is stored before the request is sent. If this fails, it may be repeated with the same
/// token, even if the controller has already answered.
///
/// # Errors
/// If the token is another node's or the folder cannot be written, in which case nothing is sent;
/// if no controller of that authority answers, or the token is withdrawn, used or expired.
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

/// As [`enrol_in`], for a simulated node: its key is only in memory, so a lost answer uses up the
/// token.
///
/// # Errors
/// If no controller of the token's authority answers, or the token is withdrawn, used or expired.
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
    if !tls::has_digest(&answer.authority, authority_digest)? {
        let reason = "the one in the token is missing".to_owned();
        return Err(credentials("the authority's certificate", reason));
    }
    Ok(answer)
}

/// A node's client of the controller. Stream and reports share one connection.
#[derive(Debug)]
pub struct NodeClient {
    transport: Transport,
    node: Name,
}

impl NodeClient {
    /// Creates a client that uses the first of the controllers that answers.
    ///
    /// # Errors
    /// If the identity cannot be used or there are no controllers.
    pub fn new(controllers: &[Controller], identity: &Identity) -> Result<Self, Error> {
        NodeClient::by(None, controllers, identity)
    }

    /// As [`NodeClient::new`], with connections that are bound to an interface if one is given.
    pub(crate) fn by(
        interface: Option<&str>,
        controllers: &[Controller],
        identity: &Identity,
    ) -> Result<Self, Error> {
        let tls = tls::trusting(&identity.authority_pem, Proof::Certificate(identity))?;
        Ok(NodeClient {
            transport: Transport::by(interface, controllers, tls, None)?,
            node: identity.node.clone(),
        })
    }

    /// Returns the node for which the client acts.
    pub fn node(&self) -> &Name {
        &self.node
    }

    /// Returns the caller's identity as the controller sees it.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn me(&self) -> Result<Caller, Error> {
        self.transport.json(Method::GET, "/v1/me", NOTHING).await
    }

    /// Registers the node's capabilities. Must be called first on every connection.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn register(&self, registration: &Registration) -> Result<(), Error> {
        self.transport
            .done(Method::PUT, &self.path("registration"), Some(registration))
            .await
    }

    /// Sends a report, which also shows that the node is alive.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn report(&self, report: &Report) -> Result<(), Error> {
        self.transport
            .done(Method::POST, &self.path("reports"), Some(report))
            .await
    }

    /// States the node's public keys, and which derived ones are in use.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn state_keys(&self, keys: &NodeKeys) -> Result<(), Error> {
        self.transport
            .done(Method::PUT, &self.path("keys"), Some(keys))
            .await
    }

    /// Opens the stream of the node's assignment and all changes to it.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn stream(&self) -> Result<NodeStream, Error> {
        let (response, controller) = self
            .transport
            .send(Method::GET, &self.path("stream"), NOTHING)
            .await?;
        Ok(NodeStream(Events::new(response, controller)))
    }

    /// Registers the node as a tunnel server; returns the clients that it may admit.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn serve_tunnels(&self, report: &ServerReport) -> Result<Admitted, Error> {
        self.transport
            .json(Method::PUT, &self.path("tunnel-server"), Some(report))
            .await
    }

    /// Returns the servers that the node may connect to as a tunnel client, and its settings. `report`
    /// says what it has done with those before.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn tunnel_servers(&self, report: &ClientReport) -> Result<Servers, Error> {
        self.transport
            .json(Method::POST, &self.path("tunnel-client"), Some(report))
            .await
    }

    /// Says what a program of the node does with a track. Returns the secret of the track and its sources.
    ///
    /// # Errors
    /// If no controller answers or it rejects the request.
    pub async fn use_track(&self, track: &Name, what: &TrackUse) -> Result<TrackKey, Error> {
        let path = self.path(&format!("tracks/{track}"));
        self.transport.json(Method::POST, &path, Some(what)).await
    }

    /// Obtains a certificate for a new key, and stores both in `folder` as [`Identity::store`]
    /// does. The old certificate stays valid until it expires; create a new client with the new
    /// identity.
    ///
    /// # Errors
    /// If the folder cannot be written, in which case nothing is sent; if no controller answers or
    /// it rejects the request.
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

    fn path(&self, what: &str) -> String {
        format!("/v1/nodes/{}/{what}", self.node)
    }
}

/// A message from the controller to a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeMessage {
    /// Replaces the previous assignment, and the policies in force.
    Assignment(Assignment),
    /// Replaces the policy of its flow, if it is newer.
    Policy(Policy),
    /// The authorities to trust, see [`Identity::trust`].
    Authority(TrustedAuthorities),
    /// The controller is still alive.
    Ping,
}

/// The stream of the controller's messages to a node.
pub struct NodeStream(Events);

impl NodeStream {
    /// Returns the next message; `None` at the end of the stream, which the caller should open
    /// again.
    ///
    /// # Errors
    /// If the controller ends the stream with a reason, the connection is lost, an event cannot be
    /// read, or nothing was received for 45 s.
    pub async fn next(&mut self) -> Result<Option<NodeMessage>, Error> {
        let Some(event) = self.0.next().await? else {
            return Ok(None);
        };
        let message = match event.event.as_str() {
            "assignment" => self.0.parse(&event).map(NodeMessage::Assignment)?,
            "policy" => self.0.parse(&event).map(NodeMessage::Policy)?,
            "authority" => self.0.parse(&event).map(NodeMessage::Authority)?,
            "ping" => NodeMessage::Ping,
            "end" => return Err(Error::Ended(Line::new(&event.data))),
            _ => return Err(self.0.unknown(&event)),
        };
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_event_that_cannot_be_read_is_an_error_that_names_it() {
        let policy = r#"{"flow":"f","epoch":2,"code":1,"probes":0,"probe_every":0,"reason":"judged","decided_unix_ms":0}"#;
        let events = [
            ("policy", policy),
            ("assignment", r#"{"revision":"seven"}"#),
            ("forecast", "{}"),
        ];
        let mut stream = NodeStream(Events::of_test(&events));
        let message = stream.next().await.unwrap().unwrap();
        assert!(matches!(message, NodeMessage::Policy(policy) if policy.epoch == 2));
        for event in ["assignment", "forecast"] {
            let error = stream.next().await.unwrap_err().to_string();
            assert!(error.contains(event), "{error}");
        }
        assert!(stream.next().await.unwrap().is_none());
    }
}

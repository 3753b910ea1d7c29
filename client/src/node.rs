use crate::error::Error;
use crate::identity::Identity;
use crate::stream::Events;
use crate::tls::{self, Proof, credentials};
use crate::transport::{Controller, NOTHING, Transport};
use hawser_control::Name;
use hawser_control::access::{Caller, Certificate, Enrol, Renew};
use hawser_control::node::{Assignment, Registration, Report};
use hawser_control::resource::Policy;
use hawser_control::tunnel::{Admitted, ServerReport, Servers};
use rcgen::{CertificateParams, KeyPair};
use reqwest::Method;

/// Gets a node's first certificate for a one-time token. The token names the authority, so that the controller need not
/// be trusted before.
///
/// # Errors
/// When no controller of that authority answers, or the token is void, used or too old.
pub async fn enrol(controllers: &[Controller], token: &str) -> Result<Identity, Error> {
    let token = token.trim();
    let authority_digest = authority_digest(token)?;
    let (key_pem, csr) = new_request()?;
    let transport = Transport::new(controllers, tls::pinning(authority_digest)?, None)?;
    let body = Enrol { token: token.to_owned(), csr };
    let answer: Certificate = transport.json(Method::POST, "/v1/enrol", Some(&body)).await?;
    if tls::digest_of_pem(&answer.authority)? != authority_digest {
        let reason = "it is not the one that the token names".to_owned();
        return Err(credentials("the authority's certificate", reason));
    }
    Identity::new(key_pem, answer.certificate, answer.authority)
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
        Ok(NodeClient { transport: Transport::new(controllers, tls, None)?, node: identity.node.clone() })
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
        self.transport.done(Method::PUT, &self.path("registration"), Some(registration)).await
    }

    /// Tells what happened, and that the node lives.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn report(&self, report: &Report) -> Result<(), Error> {
        self.transport.done(Method::POST, &self.path("reports"), Some(report)).await
    }

    /// What the node has to do: the assignment first, then every change.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn stream(&self) -> Result<NodeStream, Error> {
        let (response, controller) = self.transport.send(Method::GET, &self.path("stream"), NOTHING).await?;
        Ok(NodeStream(Events::new(response, controller)))
    }

    /// Says that the node is a server of tunnels, and hears whom it is to let in.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn serve_tunnels(&self, report: &ServerReport) -> Result<Admitted, Error> {
        self.transport.json(Method::PUT, &self.path("tunnel-server"), Some(report)).await
    }

    /// Where the node may go as a client of tunnels.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn tunnel_servers(&self) -> Result<Servers, Error> {
        self.transport.json(Method::POST, &self.path("tunnel-client"), NOTHING).await
    }

    /// A new key and its certificate. The old certificate goes on until its end; make a new client of the new identity.
    ///
    /// # Errors
    /// When no controller answers or it refuses.
    pub async fn renew(&self) -> Result<Identity, Error> {
        let (key_pem, csr) = new_request()?;
        let answer: Certificate =
            self.transport.json(Method::POST, &self.path("certificate"), Some(&Renew { csr })).await?;
        Identity::new(key_pem, answer.certificate, answer.authority)
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

/// The digest of the authority's certificate, the last part of a token.
fn authority_digest(token: &str) -> Result<[u8; 32], Error> {
    let parts: Vec<&str> = token.split('.').collect();
    let ["hawser1", _, _, digest] = parts[..] else {
        return Err(Error::Token("it should be hawser1 and three further parts, with dots between them"));
    };
    let mut bytes = [0; 32];
    hex::decode_to_slice(digest, &mut bytes)
        .map_err(|_| Error::Token("its last part should be 64 hexadecimal digits; perhaps it was cut off"))?;
    Ok(bytes)
}

/// A new key and the request to certify it, both PEM.
fn new_request() -> Result<(String, String), Error> {
    let make = || {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        // The name comes from the token or the certificate in use; the controller ignores what the request says.
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(&key)?;
        Ok((key.serialize_pem(), request.pem()?))
    };
    make().map_err(|error: rcgen::Error| credentials("a new key", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_authority() {
        let digest = "00".repeat(31) + "ff";
        let token = format!("hawser1.id.secret.{digest}");
        assert_eq!(authority_digest(&token).unwrap()[31], 0xff);
        for wrong in ["", "hawser1", "hawser2.id.secret.00", &token[..token.len() - 2], &format!("{token}.x")]
        {
            assert!(authority_digest(wrong).is_err(), "{wrong}");
        }
    }
}

//! The client of a node beside its agent, or without one: it renews the certificate when nobody else
//! does.

use crate::error::Error;
use crate::identity::Identity;
use crate::node::NodeClient;
use crate::transport::Controller;
use hawser_io::clock::Period;
use hawser_model::Name;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The time between two attempts to renew a certificate.
const RENEWALS: Duration = Duration::from_secs(60);

/// A client that acts for the node whose identity is in a folder. Several programs may share the
/// folder: each uses a certificate that another one has renewed.
#[derive(Debug)]
pub struct RenewingClient {
    folder: PathBuf,
    controllers: Vec<Controller>,
    /// The interface that connections are bound to, if any.
    interface: Option<String>,
    session: Option<Session>,
    /// When the last attempt to renew the certificate failed.
    renewal_failed: Option<Instant>,
    /// When this client has renewed the certificate.
    renewed: Option<Instant>,
    /// Whether no request was answered yet.
    is_starting: bool,
}

/// A client of the controller, and the identity that it acts for.
#[derive(Debug)]
struct Session {
    client: NodeClient,
    identity: Identity,
    /// Until the certificate is due for renewal.
    due: Period,
    /// Until half of the time is over in which an agent on this machine renews it.
    overdue: Period,
}

impl RenewingClient {
    /// Creates a client, which reads the identity with the first request.
    pub fn new(folder: &Path, controllers: &[Controller]) -> Self {
        RenewingClient {
            folder: folder.to_owned(),
            controllers: controllers.to_vec(),
            interface: None,
            session: None,
            renewal_failed: None,
            renewed: None,
            is_starting: true,
        }
    }

    /// Returns the client for the next request, with the certificate to use now. Renews it if it is
    /// due and no other program has done so; if that fails, the old one still serves.
    ///
    /// # Errors
    /// If there is no identity in the folder, or it cannot be used, [`Error::Expired`] among others.
    pub async fn client(&mut self) -> Result<&NodeClient, Error> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.stored()?,
        };
        if self.has_to_renew(&session) {
            // The agent or another program may have done it.
            session = self.stored()?;
        }
        if self.has_to_renew(&session) {
            session = self.renewed(session).await?;
        }
        // The controller has just renewed it, or the controller would only refuse it.
        let is_refused = self.renewal_failed.is_some();
        if is_refused && let Some(why) = session.identity.outside_validity() {
            let node = session.identity.node().clone();
            return Err(Error::Expired { node, why });
        }
        Ok(&self.session.insert(session).client)
    }

    /// Returns the name of the node; `None` before the first request and after
    /// [`RenewingClient::forget`].
    pub fn node(&self) -> Option<&Name> {
        Some(self.session.as_ref()?.identity.node())
    }

    /// Returns the expiry of the certificate that the last request presented.
    pub fn expires(&self) -> Option<SystemTime> {
        Some(self.session.as_ref()?.identity.expires())
    }

    /// Records that a controller has answered a request. From now on, an agent on the machine gets the
    /// time to renew the certificate first.
    pub fn answered(&mut self) {
        self.is_starting = false;
    }

    /// Binds the connections of further requests to an interface, whatever the routing table says;
    /// without one, the routing table decides. Has the effect of [`RenewingClient::forget`], too.
    pub fn bind(&mut self, interface: Option<String>) {
        self.interface = interface;
        self.forget();
    }

    /// Reads the identity again with the next request: after an error, another certificate or
    /// connection may help.
    pub fn forget(&mut self) {
        self.session = None;
    }

    /// Returns a session with the certificate of the folder.
    fn stored(&self) -> Result<Session, Error> {
        self.session_of(Identity::load(&self.folder)?)
    }

    fn session_of(&self, identity: Identity) -> Result<Session, Error> {
        let interface = self.interface.as_deref();
        let client = NodeClient::by(interface, &self.controllers, &identity)?;
        let left = identity.expires().duration_since(identity.renew_at());
        Ok(Session {
            client,
            due: identity.serves(Duration::ZERO, self.renewed),
            overdue: identity.serves(left.unwrap_or_default() / 2, self.renewed),
            identity,
        })
    }

    async fn renewed(&mut self, session: Session) -> Result<Session, Error> {
        match session.client.renew(&self.folder).await {
            Ok(identity) => {
                tracing::info!(node = %identity.node(), "certificate renewed");
                (self.renewed, self.renewal_failed) = (Some(Instant::now()), None);
                self.session_of(identity)
            }
            Err(error) => {
                tracing::warn!("cannot renew the certificate, retrying later: {error}");
                self.renewal_failed = Some(Instant::now());
                Ok(session)
            }
        }
    }

    /// Returns whether to renew a certificate: at the start when it is due, because a program that does
    /// not run often has to use the opportunity; then when half of the time is over in which an agent
    /// on this machine does it.
    fn has_to_renew(&self, session: &Session) -> bool {
        if self
            .renewal_failed
            .is_some_and(|at| at.elapsed() < RENEWALS)
        {
            return false;
        }
        match self.is_starting {
            true => session.due.is_over(),
            false => session.overdue.is_over(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    #[tokio::test]
    async fn an_expired_certificate_is_the_reason_and_not_the_controller() {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "edge-1");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        let certificate = params.self_signed(&key).unwrap().pem();
        let identity =
            Identity::new(key.serialize_pem(), certificate.clone(), certificate).unwrap();
        identity.store(folder.path()).unwrap();
        let nobody = "https://127.0.0.1:1".parse().unwrap();
        let mut client = RenewingClient::new(folder.path(), &[nobody]);
        let error = client.client().await.unwrap_err();
        assert!(matches!(error, Error::Expired { .. }), "{error}");
        assert!(error.to_string().contains("edge-1 has expired"));
    }
}

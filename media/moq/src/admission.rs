//! The admission of clients to sessions, and the counts of both.

use crate::authorisation::{Denied, Target, Token};
use crate::certificate;
use crate::places::{Place, Places};
use crate::transport::{ALPN, Asked, GroupTotals, Transport, alpn};
use hawser_io::handshakes::{HandshakeSlot, HandshakeSlots, TimeLimits};
use moq_net::server::Handshake;
use moq_net::transport::poll::{self, Boxable};
use moq_net::{cache, stats};
use parking_lot::Mutex;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tokio::time::timeout;
use web_transport_proto::http::StatusCode;

/// Counts of a [`Server`](crate::Server).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Sessions at present.
    pub sessions: u64,
    /// Groups, with catalogs, that were offered to sessions. Those that are in no other count wait, or were
    /// given up before they began.
    pub offered_groups: u64,
    /// Groups that were sent to their end.
    pub sent_groups: u64,
    /// Groups that were given up after they had begun, because newer ones had begun or the client left.
    pub cut_groups: u64,
    /// Groups that a session was not offered because it was behind.
    pub stale_groups: u64,
    /// Bytes of the objects that were offered to sessions.
    pub offered_bytes: u64,
    /// Bytes of objects that are kept for sessions.
    pub cached_bytes: u64,
    /// Clients that were refused because of the maximum number of sessions, in total or of their network.
    pub full: u64,
    /// Clients that were refused because too many handshakes, of all or of their source, were in progress.
    pub handshakes: u64,
    /// Clients that requested another path than the root.
    pub wrong_path: u64,
    /// Clients without the right token.
    pub unauthorised: u64,
    /// Connections that became no session: they did not end their handshake in time, or were not valid.
    pub failed: u64,
}

/// The state that the thread and its owner share.
pub(crate) struct Shared {
    pub(crate) fingerprint: Mutex<String>,
    pub(crate) registry: stats::Registry,
    pub(crate) pool: cache::Pool,
    pub(crate) groups: Arc<GroupTotals>,
    pub(crate) full: AtomicU64,
    pub(crate) handshakes: AtomicU64,
    pub(crate) wrong_path: AtomicU64,
    pub(crate) unauthorised: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// The resources for new sessions.
pub(crate) struct Admission {
    pub(crate) server: moq_net::Server,
    pub(crate) protocols: Vec<&'static str>,
    pub(crate) token: Option<Token>,
    pub(crate) name: String,
    pub(crate) window: u32,
    /// The places of sessions, which clients take once they have shown their token.
    pub(crate) sessions: Arc<Places>,
    pub(crate) shared: Arc<Shared>,
}

/// The session of a client.
pub(crate) struct Joined<T: poll::Session> {
    session: moq_net::Session,
    driver: moq_net::Driver<T>,
    _place: Place,
}

/// A connection that becomes no session.
pub(crate) enum Refusal {
    Denied(Denied),
    Full,
    Failed(String),
}

/// Returns the protocols of raw QUIC, and HTTP/3 for WebTransport.
pub(crate) fn alpns(protocols: &[&'static str]) -> Vec<Vec<u8>> {
    let protocols = protocols.iter().chain([&ALPN]);
    protocols.map(|alpn| alpn.as_bytes().to_vec()).collect()
}

impl Admission {
    /// Returns the name of the broadcast.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the protocols (ALPN) of the versions of MoQ.
    pub(crate) fn protocols(&self) -> &[&'static str] {
        &self.protocols
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns whether clients have to present a token.
    pub(crate) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Takes a slot for the handshake of a client, unless there are too many handshakes or sessions.
    pub(crate) fn take_slot(
        &self,
        handshakes: &Arc<HandshakeSlots>,
        from: SocketAddr,
    ) -> Option<HandshakeSlot> {
        let source = from.ip().to_canonical();
        if !self.sessions.has_room(source) {
            self.shared.full.fetch_add(1, Relaxed);
            return None;
        }
        let slot = handshakes.take(source).ok();
        if slot.is_none() {
            self.shared.handshakes.fetch_add(1, Relaxed);
        }
        slot
    }

    /// Opens the session of a client that has the right token, within its time limits.
    pub(crate) async fn admit(
        &self,
        incoming: noq::Incoming,
        source: IpAddr,
        limits: TimeLimits,
    ) -> Result<Joined<Transport>, Refusal> {
        let opened = async {
            let connection = timeout(limits.tls_handshake, incoming.into_future()).await;
            self.open(connection.map_err(|_| Refusal::late())??, source)
                .await
        };
        let opened = timeout(limits.first_message, opened).await;
        opened.map_err(|_| Refusal::late())?
    }

    /// Serves a client until it leaves. `over` names its transport.
    pub(crate) async fn serve<T: poll::Session>(
        &self,
        joined: Joined<T>,
        from: SocketAddr,
        over: &'static str,
    ) {
        let version = joined.session.version();
        tracing::info!(broadcast = self.name, %from, %version, over, "MoQ client joined");
        let ended = moq_net::time::run(joined.driver).await;
        tracing::info!(broadcast = self.name, %from, "MoQ client left: {ended}");
    }

    /// Counts a client that becomes no session.
    pub(crate) fn refuse(&self, refusal: &Refusal, from: SocketAddr) {
        self.shared.count(refusal);
        tracing::debug!(broadcast = self.name, %from, "MoQ client refused: {refusal}");
    }

    async fn open(
        &self,
        connection: noq::Connection,
        source: IpAddr,
    ) -> Result<Joined<Transport>, Refusal> {
        let (transport, target) = if alpn(&connection).as_deref() == Some(ALPN) {
            let asked = Asked::accept(connection).await?;
            let offered = asked.request.protocols.iter();
            let mut chosen = offered.filter(|name| self.protocols.contains(&name.as_str()));
            let Some(protocol) = chosen.next().cloned() else {
                asked.refuse(StatusCode::BAD_REQUEST).await;
                let none = "it offers no version of MoQ that is served here";
                return Err(Refusal::Failed(none.to_owned()));
            };
            let target = asked.target();
            (asked.accept_with(&protocol).await?, Some(target))
        } else {
            let none = || Refusal::Failed("it has no protocol".to_owned());
            (Transport::raw(connection).ok_or_else(none)?, None)
        };
        let transport = transport.counting(&self.shared.groups);
        let handshake = self.begin(transport).await?;
        let target = target.unwrap_or_else(|| handshake.path().to_owned());
        let token = handshake.token().map(|token| &token.value[..]);
        if let Err(denied) = Target::parse(&target).check(self.token.as_ref(), token) {
            handshake.close(match denied {
                Denied::Path => moq_net::Error::NotFound,
                Denied::Token => moq_net::Error::Unauthorized,
            });
            return Err(Refusal::Denied(denied));
        }
        self.join(handshake, source).await
    }

    /// Begins the session of a client.
    pub(crate) async fn begin<T: Boxable>(&self, transport: T) -> Result<Handshake<T>, Refusal>
    where
        T::SendStream: Sync,
        T::RecvStream: Sync,
    {
        Ok(self
            .server
            .accept_request(Instant::now(), transport)
            .await?)
    }

    /// Opens the session of a client that may have one, if there is room.
    pub(crate) async fn join<T: Boxable>(
        &self,
        handshake: Handshake<T>,
        source: IpAddr,
    ) -> Result<Joined<T>, Refusal>
    where
        T::SendStream: Sync,
        T::RecvStream: Sync,
    {
        let Some(place) = self.sessions.take(source) else {
            handshake.close(moq_net::Error::Cancel);
            return Err(Refusal::Full);
        };
        let presence = self.shared.registry.tier(stats::Tier::default());
        let handshake = handshake.with_stats(presence.session(&self.name));
        let (session, driver) = handshake.ok().await?;
        Ok(Joined {
            session,
            driver,
            _place: place,
        })
    }

    pub(crate) fn renew_certificate(&self, endpoint: &noq::Endpoint) {
        let address = endpoint.local_addr().map(|address| address.ip());
        let Ok(identity) = address.map(certificate::self_signed) else {
            return;
        };
        let identity = match identity {
            Ok(identity) => identity,
            Err(error) => {
                tracing::error!("cannot make another certificate for MoQ: {error}");
                return;
            }
        };
        match certificate::server_config(&identity, alpns(&self.protocols), self.window) {
            Ok(config) => {
                endpoint.set_server_config(Some(config));
                let fingerprint = certificate::fingerprint(&identity);
                tracing::info!(
                    broadcast = self.name,
                    fingerprint,
                    "MoQ certificate replaced"
                );
                *self.shared.fingerprint.lock() = fingerprint;
            }
            Err(error) => tracing::error!("cannot use another certificate for MoQ: {error}"),
        }
    }
}

impl Shared {
    pub(crate) fn fingerprint(&self) -> String {
        self.fingerprint.lock().clone()
    }

    /// Returns the sums of the groups that are sent.
    pub(crate) const fn groups(&self) -> &Arc<GroupTotals> {
        &self.groups
    }

    fn count(&self, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::Full => &self.full,
            Refusal::Denied(Denied::Path) => &self.wrong_path,
            Refusal::Denied(Denied::Token) => &self.unauthorised,
            Refusal::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn stats(&self) -> ServerStats {
        // Removes sessions that have ended, and keeps their sums.
        self.registry.report(&mut stats::Report::default());
        let snapshot = self.registry.snapshot();
        let sessions = snapshot.sessions().iter().map(|(_, s)| s.active()).sum();
        let mut offered = stats::Traffic::default();
        for (_, role, traffic) in snapshot.traffic() {
            if role == stats::Role::Publisher {
                offered.add(traffic);
            }
        }
        ServerStats {
            sessions,
            offered_groups: offered.groups,
            sent_groups: self.groups.sent.load(Relaxed),
            cut_groups: self.groups.cut.load(Relaxed),
            stale_groups: offered.stale.groups,
            offered_bytes: offered.bytes,
            cached_bytes: self.pool.used(),
            full: self.full.load(Relaxed),
            handshakes: self.handshakes.load(Relaxed),
            wrong_path: self.wrong_path.load(Relaxed),
            unauthorised: self.unauthorised.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }
}

impl Refusal {
    pub(crate) fn late() -> Self {
        Refusal::Failed("it did not end its handshake in time".to_owned())
    }
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Refusal::Failed(error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Full => {
                f.write_str("the maximum number of sessions is reached, in total or of its network")
            }
            Refusal::Denied(Denied::Path) => f.write_str("the path is not the root"),
            Refusal::Denied(Denied::Token) => f.write_str("the token is missing or wrong"),
            Refusal::Failed(reason) => f.write_str(reason),
        }
    }
}

//! Authentication and authorization of requests.

use crate::audit::Origin;
use crate::authority::Presented;
use crate::controller::Controller;
use crate::limit::{Checked, Unchecked};
use crate::record::{Issued, TokenUseRecord, emit, key, sha256_hex};
use crate::refusal::Refusal;
use crate::request::RequestId;
use crate::store::{Error, Expect, Write};
use crate::token_use::TokenUse;
use crate::view::View;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::access::{Caller, EnrolmentToken, Scope, Token};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

/// The other end of a connection, as known from TLS.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The source address.
    pub address: IpAddr,
    /// The node that its certificate names, if it presented one of this controller's authority.
    pub presented: Option<Presented>,
}

/// A node with a valid certificate.
pub(crate) struct Certified {
    pub(crate) checked: Checked,
    pub(crate) node: Presented,
    pub(crate) origin: Origin,
    pub(crate) tenant: Name,
    pub(crate) expires_unix_ms: u64,
}

/// A node with a certificate that can be renewed, although it may have expired by its date.
pub(crate) struct Renewing(pub(crate) Certified);

/// The bearer of a token with the scope that `N` needs.
pub(crate) struct Operator<N> {
    pub(crate) checked: Checked,
    pub(crate) token: Token,
    pub(crate) origin: Origin,
    secret_sha256: String,
    needs: PhantomData<N>,
}

/// The proof that an operator may see a resource, as far as the view contains it.
pub(crate) struct Sight(());

/// The scope that a request needs.
pub(crate) trait Needs {
    const SCOPE: Scope;
}

pub(crate) struct Read;
pub(crate) struct Operate;
pub(crate) struct Admin;

impl Needs for Read {
    const SCOPE: Scope = Scope::Read;
}

impl Needs for Operate {
    const SCOPE: Scope = Scope::Operate;
}

impl Needs for Admin {
    const SCOPE: Scope = Scope::Admin;
}

impl<N> Operator<N> {
    /// Returns whether the operator's token still exists with the same secret, and has not expired.
    pub(crate) fn is_valid_in(&self, view: &View) -> bool {
        let token = view.token(&self.secret_sha256);
        token.is_some_and(|token| !token.value.is_expired())
    }

    /// Returns whether the operator may see resources of that tenant.
    pub(crate) fn sees(&self, tenant: &Name) -> bool {
        self.token.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// Returns whether the operator may see resources of that tenant, or of no tenant.
    pub(crate) fn sees_optional(&self, tenant: Option<&Name>) -> bool {
        tenant.map_or(self.token.tenant.is_none(), |tenant| self.sees(tenant))
    }

    /// Returns the proof that the operator may see a resource of the tenant that `tenant` returns, or of no
    /// tenant; `None` if it may not. The view may not contain the resource yet: another controller may
    /// have created it.
    pub(crate) fn sight<R>(
        &self,
        known: Option<&R>,
        tenant: impl FnOnce(&R) -> Option<&Name>,
    ) -> Option<Sight> {
        let is_seen = known.is_none_or(|known| self.sees_optional(tenant(known)));
        is_seen.then_some(Sight(()))
    }

    /// Rejects access to another tenant than the operator's.
    pub(crate) fn must_be_of(&self, tenant: &Name) -> Result<Sight, Refusal> {
        if self.sees(tenant) {
            return Ok(Sight(()));
        }
        let own = self.token.tenant.as_ref().map_or("", |own| own.as_str());
        Err(Refusal::forbidden(format!(
            "this token is limited to the tenant {own}; use one for {tenant}"
        )))
    }

    /// Rejects operators that are limited to one tenant.
    pub(crate) fn must_see_all(&self) -> Result<Sight, Refusal> {
        match &self.token.tenant {
            None => Ok(Sight(())),
            Some(own) => Err(Refusal::forbidden(format!(
                "this token is limited to the tenant {own}; use one for all tenants"
            ))),
        }
    }
}

impl<N: Needs> FromRequestParts<Arc<Controller>> for Operator<N> {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        controller: &Arc<Controller>,
    ) -> Result<Self, Refusal> {
        let (checked, token, secret_sha256) = controller.operator(parts, N::SCOPE)?;
        controller.check_whole()?;
        let origin = Origin::operator(&token.name, peer(parts).address, request(parts));
        Ok(Operator {
            checked,
            token,
            origin,
            secret_sha256,
            needs: PhantomData,
        })
    }
}

impl FromRequestParts<Arc<Controller>> for Certified {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        controller: &Arc<Controller>,
    ) -> Result<Self, Refusal> {
        let certified = controller.node(parts, |_| false)?;
        controller.check_whole()?;
        Ok(certified)
    }
}

impl FromRequestParts<Arc<Controller>> for Renewing {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        controller: &Arc<Controller>,
    ) -> Result<Self, Refusal> {
        let may_renew = |issued: &Issued| controller.may_renew(issued);
        let certified = controller.node(parts, may_renew)?;
        controller.check_whole()?;
        Ok(Renewing(certified))
    }
}

impl Certified {
    /// Rejects access to another node.
    pub(crate) fn must_be(&self, node: &Name) -> Result<(), Refusal> {
        if self.node.node == *node {
            return Ok(());
        }
        Err(Refusal::forbidden(format!(
            "this certificate is for the node {}, not for {node}",
            self.node.node
        )))
    }
}

/// The identity of the caller: an operator or a node.
pub(crate) struct Anyone(pub(crate) Caller);

impl FromRequestParts<Arc<Controller>> for Anyone {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        controller: &Arc<Controller>,
    ) -> Result<Self, Refusal> {
        if parts.headers.contains_key(AUTHORIZATION) || peer(parts).presented.is_none() {
            let (_, token, _) = controller.operator(parts, Scope::Read)?;
            return Ok(Anyone(Caller::Operator(token)));
        }
        let Certified {
            node,
            tenant,
            expires_unix_ms,
            ..
        } = controller.node(parts, |_| false)?;
        Ok(Anyone(Caller::Node {
            name: node.node,
            tenant,
            expires_unix_ms,
        }))
    }
}

pub(crate) fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "read",
        Scope::Operate => "operate",
        Scope::Admin => "admin",
    }
}

fn revoked(node: &Presented) -> Refusal {
    let what = format!(
        "the certificate of {} was revoked or replaced: enrol the node again",
        node.node
    );
    Refusal::forbidden(what)
}

fn expired(node: &Presented, issued: &Issued) -> Refusal {
    let ago = unix_ms().saturating_sub(issued.expires_unix_ms) / 1000;
    Refusal::unauthorized(format!(
        "the certificate of {} has expired, {ago} s ago by this controller's clock: set that clock if it is wrong, \
         or else enrol the node again",
        node.node
    ))
}

fn too_many_failures(after: std::time::Duration) -> Refusal {
    let what = "failed authentications from this address, which others may share (NAT); valid credentials are accepted meanwhile, so check yours";
    Refusal::too_many(what, after)
}

fn peer(parts: &Parts) -> &Peer {
    parts
        .extensions
        .get::<Peer>()
        .expect("the caller of the router sets the peer")
}

fn bearer_token(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = header.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(secret.trim())
}

fn request(parts: &Parts) -> RequestId {
    parts
        .extensions
        .get::<RequestId>()
        .expect("the middleware sets the request identifier")
        .clone()
}

impl Controller {
    /// Rejects a request while the view does not show the whole store.
    fn check_whole(&self) -> Result<(), Refusal> {
        let fault = self.view().fault();
        fault.map_or(Ok(()), |fault| Err(Refusal::unavailable(fault)))
    }

    /// Returns a check for commits of a node's statement about itself: the commit succeeds only if
    /// the certificate still belongs to the node.
    pub(crate) fn certificate_check(&self, node: &Presented) -> Result<Write, Refusal> {
        let view = self.view();
        let (record, _) = view.accepted(node).ok_or_else(|| revoked(node))?;
        Ok(Write::check(
            key::of(key::NODE, &node.node),
            Expect::Revision(record.revision),
        ))
    }

    /// Returns whether a node's certificate is valid.
    pub(crate) fn certified(&self, node: &Presented) -> bool {
        let view = self.view();
        let accepted = view.accepted(node);
        accepted.is_some_and(|(_, issued)| unix_ms() < issued.expires_unix_ms)
    }

    /// Counts a failed authentication from an address. Returns 429 if there were too many, and
    /// `refusal` otherwise.
    pub(crate) fn failed(
        &self,
        address: IpAddr,
        reason: &'static str,
        refusal: Refusal,
    ) -> Refusal {
        self.metrics.refused(reason);
        match self.limits.failure(address) {
            Ok(()) => refusal,
            Err(after) => too_many_failures(after),
        }
    }

    /// Checks a request whose identity only the store can confirm.
    pub(crate) fn stranger(&self, address: IpAddr) -> Result<Checked, Refusal> {
        self.metrics.refused("unconfirmed");
        self.limits.stranger(address).map_err(too_many_failures)
    }

    /// Checks the rate of the requests of a node.
    pub(crate) fn node_rate(&self, node: &Name) -> Result<Checked, Refusal> {
        self.limits.node(node).map_err(|after| {
            self.metrics.refused("node_rate");
            Refusal::too_many("requests by this node", after)
        })
    }

    /// Checks the rate of the requests with an enrolment token.
    pub(crate) fn enrolment_rate(&self, token: &EnrolmentToken) -> Result<Checked, Refusal> {
        self.limits.enrolment(&token.id).map_err(|after| {
            self.metrics.refused("enrolment_rate");
            Refusal::too_many("requests with this enrolment token", after)
        })
    }

    /// Returns whether leaders have not run for the lifetime of a certificate since it was issued. Its
    /// date may have been wrong then, or be wrong now.
    fn may_renew(&self, issued: &Issued) -> bool {
        let age = |total_s| self.view().run_time.age(total_s);
        let age = issued.run_time_s.map(age);
        age.is_some_and(|age| age < self.config.certificate_life())
    }

    /// Returns the node that sends a request. `although_expired` says of its certificate whether it
    /// suffices if it has expired.
    fn node(
        &self,
        parts: &Parts,
        although_expired: impl Fn(&Issued) -> bool,
    ) -> Result<Certified, Refusal> {
        let peer = peer(parts);
        let Some(presented) = &peer.presented else {
            let what = "only nodes may do this: connect with the certificate that the node got when it was enrolled";
            return Err(self.failed(peer.address, "no_certificate", Refusal::unauthorized(what)));
        };
        let accepted = self.view().accepted(presented).map(|(record, issued)| {
            let tenant = record.value.tenant.clone();
            (tenant, issued.clone())
        });
        let Some((tenant, issued)) = accepted else {
            return Err(self.failed(peer.address, "revoked_certificate", revoked(presented)));
        };
        let expires_unix_ms = issued.expires_unix_ms;
        if expires_unix_ms <= unix_ms() && !although_expired(&issued) {
            let refusal = expired(presented, &issued);
            return Err(self.failed(peer.address, "expired_certificate", refusal));
        }
        let checked = self.node_rate(&presented.node)?;
        let origin = Origin::node(&presented.node, peer.address, request(parts));
        Ok(Certified {
            checked,
            node: presented.clone(),
            origin,
            tenant,
            expires_unix_ms,
        })
    }

    /// Writes that the token of a request is used, if that is not known yet.
    pub(crate) fn note_use(&self, used: &TokenUse) {
        let Some((checked, token, revision)) = used.get() else {
            return;
        };
        let at_unix_ms = unix_ms();
        let known_unix_ms = self.view().token_used_unix_ms(token).unwrap_or(0);
        let is_due = (self.token_uses).begin_write(token, known_unix_ms, at_unix_ms);
        if !is_due {
            return;
        }
        let writes = vec![
            Write::check(key::of(key::TOKEN, token), Expect::Revision(*revision)),
            Write::put(
                key::of(key::TOKEN_USE, token),
                emit(&TokenUseRecord { at_unix_ms }),
            ),
        ];
        let (store, token) = (self.store(checked).clone(), token.clone());
        self.tasks.spawn(async move {
            match store.commit(writes).await {
                // The token was changed or deleted.
                Ok(_) | Err(Error::Conflict { .. }) => {}
                Err(error) => tracing::warn!(%token, "cannot store the use of a token: {error}"),
            }
        });
    }

    /// Checks the identity of an operator, the scope and the rate. Returns the proof, the token of the
    /// caller and the digest of its secret.
    fn operator(&self, parts: &Parts, needs: Scope) -> Result<(Checked, Token, String), Refusal> {
        let address = peer(parts).address;
        let Some(secret) = bearer_token(parts) else {
            let what = "only operators may do this: send `Authorization: Bearer TOKEN`";
            return Err(self.failed(address, "no_token", Refusal::unauthorized(what)));
        };
        let digest = sha256_hex(secret);
        let Some(record) = self.view().token(&digest).cloned() else {
            let what = "unknown token: it was mistyped, replaced or deleted";
            return Err(self.failed(address, "wrong_token", Refusal::unauthorized(what)));
        };
        if record.value.is_expired() {
            let what =
                "this token has expired: an operator with the scope admin can give it a new secret";
            return Err(self.failed(address, "expired_token", Refusal::unauthorized(what)));
        }
        let token = Token::clone(&record.value.token);
        let checked = self.limits.operator(&token, needs);
        let checked = checked.map_err(|failed| self.unchecked(&token, needs, failed))?;
        if let Some(used) = parts.extensions.get::<TokenUse>() {
            used.set(&checked, &token.name, record.revision);
        }
        Ok((checked, token, digest))
    }

    fn unchecked(&self, token: &Token, needs: Scope, failed: Unchecked) -> Refusal {
        match failed {
            Unchecked::Scope => {
                self.metrics.refused("scope");
                let (has, needs) = (scope_name(token.scope), scope_name(needs));
                Refusal::forbidden(format!(
                    "this token has the scope {has}; use one with {needs}"
                ))
            }
            Unchecked::Rate(after) => {
                self.metrics.refused("operator_rate");
                Refusal::too_many("requests with this token", after)
            }
        }
    }
}

impl Refusal {
    pub(crate) fn too_many(what: &str, after: std::time::Duration) -> Refusal {
        let seconds = after.as_secs() + 1;
        let detail = format!("too many {what}; wait {seconds} s");
        Refusal {
            retry_after_s: Some(seconds),
            ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
    }
}

use super::extract::{Body, Path};
use super::nodes::missing;
use super::refusal::{BodyRefused, Failed, Refusal, Refused};
use super::request::RequestId;
use crate::access::{Certified, Peer};
use crate::audit::Origin;
use crate::authority::{NodeCertificate, SigningRequest};
use crate::controller::{About, Controller};
use crate::record::{
    EnrolmentRecord, NodeRecord, UsedRecord, emit, key, parse, random_hex, sha256_hex, unix_ms,
};
use crate::store::{Error, Expect, Write};
use crate::view::At;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use hawser_control::Name;
use hawser_control::access::{Certificate, Enrol, EnrolmentToken, InvalidToken, Renew};
use std::sync::Arc;

/// How often an enrolment is tried when others change the same node.
const ATTEMPTS: usize = 8;

/// Get a node's first certificate for a one-time token
///
/// Needs no authentication but the token. A node that had certificates loses them. The same key may ask again with the same
/// token, and gets the same certificate for as long as that is in force.
#[utoipa::path(post, path = "/v1/enrol", tag = "nodes", request_body = Enrol,
    responses((status = 201, body = Certificate), Refused, BodyRefused))]
pub(super) async fn enrol(
    State(controller): State<Arc<Controller>>,
    Extension(peer): Extension<Peer>,
    Extension(request): Extension<RequestId>,
    Body(enrol): Body<Enrol>,
) -> Result<(StatusCode, Json<Certificate>), Failed> {
    let refused = |what: &str| {
        let refusal = Refusal::forbidden(format!("{what}; make a new one: POST /v1/nodes/NAME/enrolment"));
        controller.failed(peer.address, "enrolment", refusal)
    };
    let token: EnrolmentToken =
        enrol.token.parse().map_err(|error: InvalidToken| refused(&error.to_string()))?;
    if token.authority_sha256 != controller.authority.digest() {
        return Err(refused("this token is for another authority's controller").into());
    }
    let node = &token.node;
    if !controller.knows(&token) {
        // Another controller may have made it since. The store is asked, but not by everybody as often as they like.
        controller.may_fail(peer.address)?;
    }
    for _ in 0..ATTEMPTS {
        let Some(At { value: mut record, revision }) = controller.invited(&token).await? else {
            return Err(refused("this token was withdrawn with its node or by itself, or never made").into());
        };
        let Some(place) = record.enrolments.iter().position(|enrolment| enrolment.id == token.id) else {
            unreachable!("the record was found by it");
        };
        if record.enrolments[place].expires_unix_ms <= unix_ms() {
            return Err(refused("this token is too old").into());
        }
        if let Some(other) = enrol.node.as_ref().filter(|other| *other != node) {
            controller.metrics.refused("enrolment_of_another");
            let what = format!("this token enrols {node}, not {other}; it was not used and is still good");
            return Err(Refusal::forbidden(what).into());
        }
        let asked = controller.signing_request(&enrol.csr)?;
        if let Some(used) = &record.enrolments[place].used {
            let again = controller.answered_before(&record, used, node, &asked);
            let answer = again.ok_or_else(|| refused("this token was used already"))?;
            return Ok((StatusCode::CREATED, Json(answer)));
        }
        let certificate = controller.sign(&asked, node)?;
        // Only the latest answer is worth keeping: it has made those before void.
        record.enrolments[place].used = Some(used(&asked, &certificate));
        record.enrolments.retain(|enrolment| enrolment.used.is_none() || enrolment.id == token.id);
        record.forget_expired_tokens();
        record.signal_key = Some(random_hex::<16>());
        record.certificates = vec![certificate.issued.clone()];
        let by = Origin::node(node, peer.address, request.clone()).changes(node, record.changed_in(revision));
        let about = About::tenant(&record.tenant).node(node).by(by);
        let writes = vec![put_node(node, record, Expect::Revision(revision))];
        let message = format!("node {node} was enrolled by the token {}", token.id);
        match controller.commit(writes, about, "node_enrolled", message).await {
            Ok(_) => return Ok((StatusCode::CREATED, Json(controller.answer(node, certificate)))),
            // It is read again from the store, where the other's change is already.
            Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::unavailable("the node is being changed by others; try again").into())
}

/// Get a node's next certificate
///
/// The one in use stays valid until its end, however often a node asks.
#[utoipa::path(post, path = "/v1/nodes/{node}/certificate", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = Renew,
    responses((status = 201, body = Certificate), Refused, BodyRefused))]
pub(super) async fn renew(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
    Body(renew): Body<Renew>,
) -> Result<(StatusCode, Json<Certificate>), Failed> {
    caller.must_be(&node)?;
    controller.may_change(&node)?;
    let request = controller.signing_request(&renew.csr)?;
    let (controller, node, request, caller) = (&*controller, &node, &request, &caller);
    let certificate = controller
        .retrying(|| async move {
            let found = controller.view().node(node).map(|(_, record)| record.clone());
            let At { value: mut record, revision } = found.ok_or_else(|| missing(node))?;
            let certificate = controller.sign(request, node)?;
            record.renew(certificate.issued.clone(), &caller.node.serial);
            let by = caller.origin.changes(node, record.changed_in(revision));
            let about = About::tenant(&record.tenant).node(node).by(by);
            let write = put_node(node, record, Expect::Revision(revision));
            let message = format!("node {node} renewed its certificate");
            controller.commit(vec![write], about, "certificate_renewed", message).await?;
            Ok(certificate)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(controller.answer(node, certificate))))
}

fn used(request: &SigningRequest, certificate: &NodeCertificate) -> UsedRecord {
    UsedRecord {
        at_unix_ms: unix_ms(),
        key_sha256: request.key_sha256(),
        serial: certificate.issued.serial.clone(),
        certificate: certificate.pem.clone(),
        renew_unix_ms: certificate.renew_unix_ms,
    }
}

/// Writes a node that was changed on request.
pub(super) fn put_node(name: &Name, node: NodeRecord, read: Expect) -> Write {
    Write::put(key::of(key::NODE, name), emit(&NodeRecord { changed_in: None, ..node })).when(read)
}

impl Controller {
    /// The node that a token enrols, as it is in the store: the token may have been made at another controller just now.
    async fn invited(&self, token: &EnrolmentToken) -> Result<Option<At<NodeRecord>>, Error> {
        let key = key::of(key::NODE, &token.node);
        let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
        let Some(value) = parse::<NodeRecord>(&key, &entry.value) else { return Ok(None) };
        // Digests are compared, so the time that it takes tells nothing of the secret.
        let secret_sha256 = sha256_hex(&token.secret);
        let is_one = |known: &EnrolmentRecord| known.id == token.id && known.secret_sha256 == secret_sha256;
        Ok(value.enrolments.iter().any(is_one).then_some(At { value, revision: entry.revision }))
    }

    /// Whether there is a token of this number, as far as this controller has followed the store.
    fn knows(&self, token: &EnrolmentToken) -> bool {
        let view = self.view();
        let enrolments = view.node(&token.node).map(|(_, record)| &record.value.enrolments);
        enrolments.is_some_and(|enrolments| enrolments.iter().any(|known| known.id == token.id))
    }

    /// The answer that the bearer of this key got when it used the token, if that still holds.
    fn answered_before(
        &self,
        record: &NodeRecord,
        used: &UsedRecord,
        node: &Name,
        request: &SigningRequest,
    ) -> Option<Certificate> {
        let issued = record.certificate(&used.serial)?;
        let is_same = used.key_sha256 == request.key_sha256();
        let (pem, issued, renew_unix_ms) = (used.certificate.clone(), issued.clone(), used.renew_unix_ms);
        is_same.then(|| self.answer(node, NodeCertificate { pem, issued, renew_unix_ms }))
    }

    fn signing_request(&self, csr: &str) -> Result<SigningRequest, Refusal> {
        SigningRequest::parse(csr).map_err(|error| Refusal::meaningless(error.to_string()))
    }

    fn sign(&self, request: &SigningRequest, node: &Name) -> Result<NodeCertificate, Refusal> {
        let life = self.config.certificate_life();
        self.authority.sign(request, node, life).map_err(|error| Refusal::meaningless(error.to_string()))
    }

    fn answer(&self, node: &Name, certificate: NodeCertificate) -> Certificate {
        Certificate {
            node: node.clone(),
            certificate: certificate.pem,
            authority: self.authority.pem().to_owned(),
            renew_unix_ms: certificate.renew_unix_ms,
            expires_unix_ms: certificate.issued.expires_unix_ms,
        }
    }
}

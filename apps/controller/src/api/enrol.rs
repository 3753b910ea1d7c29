use super::extract::{Body, Path};
use super::nodes::missing;
use super::refusal::{BodyRefused, Failed, Refusal, Refused};
use super::request::RequestId;
use crate::access::{Certified, Peer};
use crate::audit::Origin;
use crate::authority::NodeCertificate;
use crate::controller::{About, Controller};
use crate::record::{EnrolmentRecord, NodeRecord, emit, key, parse, random_hex, sha256_hex, unix_ms};
use crate::store::{Error, Expect, Revision, Write};
use crate::view::At;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use hawser_control::Name;
use hawser_control::access::{Certificate, Enrol, Renew};
use std::sync::Arc;

/// Certificates of one node that are accepted at once: the one in use and those that a node got and lost.
const CERTIFICATES: usize = 3;

/// Get a node's first certificate for a one-time token
///
/// Needs no authentication but the token. A node that had certificates loses them.
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
    let (enrolment_key, enrolment) = match controller.enrolment(&enrol.token).await? {
        Ok(found) => found,
        Err(what) => return Err(refused(what).into()),
    };
    let node = &enrolment.value.node;
    for _ in 0..8 {
        let Some(record) = controller.view().node(node).map(|(_, record)| record.clone()) else {
            return Err(refused("the node of this token was deleted").into());
        };
        let certificate = controller.sign(&enrol.csr, node)?;
        let signal_key = Some(random_hex::<16>());
        let new = NodeRecord { signal_key, certificates: vec![certificate.issued.clone()], ..record.value };
        let used = Write::delete(&enrolment_key).when(Expect::Revision(enrolment.revision));
        let by = Origin::node(node, peer.address, request.clone()).changes(node, record.revision);
        let about = About::tenant(&new.tenant).node(node).by(by);
        let writes = vec![used, put_node(node, &new, record.revision)];
        match controller.commit(writes, about, "node_enrolled", format!("node {node} was enrolled")).await {
            Ok(_) => return Ok((StatusCode::CREATED, Json(controller.answer(node, certificate)))),
            Err(Error::Conflict { key, .. }) if key == enrolment_key => {
                return Err(refused("this token was used already").into());
            }
            Err(Error::Conflict { found, .. }) => controller.caught_up(found).await,
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::unavailable("the node is being changed by others; try again").into())
}

/// Get a node's next certificate
///
/// Those before stay valid until their end.
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
    let (controller, origin, node, csr) = (&*controller, &caller.origin, &node, &renew.csr);
    let certificate = controller
        .retrying(|| async move {
            let found = controller.view().node(node).map(|(_, record)| record.clone());
            let At { value, revision } = found.ok_or_else(|| missing(node))?;
            let certificate = controller.sign(csr, node)?;
            let mut new = value;
            new.certificates.retain(|issued| unix_ms() < issued.expires_unix_ms);
            new.certificates.push(certificate.issued.clone());
            let surplus = new.certificates.len().saturating_sub(CERTIFICATES);
            new.certificates.drain(..surplus);
            let about = About::tenant(&new.tenant).node(node).by(origin.changes(node, revision));
            let write = put_node(node, &new, revision);
            let message = format!("node {node} renewed its certificate");
            controller.commit(vec![write], about, "certificate_renewed", message).await?;
            Ok(certificate)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(controller.answer(node, certificate))))
}

fn put_node(name: &Name, node: &NodeRecord, read: Revision) -> Write {
    Write::put(key::of(key::NODE, name), emit(node)).when(Expect::Revision(read))
}

impl Controller {
    /// What a token stands for, or why it stands for nothing.
    async fn enrolment(
        &self,
        token: &str,
    ) -> Result<Result<(String, At<EnrolmentRecord>), &'static str>, Error> {
        let parts: Vec<&str> = token.trim().split('.').collect();
        let ["hawser1", id, secret, authority] = parts[..] else {
            return Ok(Err("this is no enrolment token"));
        };
        if authority != self.authority.digest() {
            return Ok(Err("this token is for another authority's controller"));
        }
        let is_id = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id {
            return Ok(Err("this is no enrolment token"));
        }
        let key = format!("{}{id}", key::ENROLMENT);
        let unknown = "this token was used already, or it was never made";
        let Some(entry) = self.store.get(&key).await? else { return Ok(Err(unknown)) };
        let Some(record) = parse::<EnrolmentRecord>(&key, &entry.value) else { return Ok(Err(unknown)) };
        // Digests are compared, so the time that it takes tells nothing of the secret.
        if record.secret_sha256 != sha256_hex(secret) {
            return Ok(Err(unknown));
        }
        if record.expires_unix_ms <= unix_ms() {
            return Ok(Err("this token is too old"));
        }
        Ok(Ok((key, At { value: record, revision: entry.revision })))
    }

    fn sign(&self, csr: &str, node: &Name) -> Result<NodeCertificate, Refusal> {
        let life = self.config.certificate_life();
        self.authority.sign(csr, node, life).map_err(|error| Refusal::meaningless(error.to_string()))
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

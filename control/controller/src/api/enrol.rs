use super::extract::{Message, Path};
use crate::access::{Certified, Peer, Renewing};
use crate::audit::Origin;
use crate::authority::{NodeCertificate, SigningRequest};
use crate::controller::{About, Controller};
use crate::limit::Checked;
use crate::record::{EnrolmentRecord, NodeRecord, UsedRecord, emit, key, parse, sha256_hex};
use crate::refusal::{BodyErrors, CommonErrors, HandlerError, Refusal};
use crate::request::RequestId;
use crate::store::{Error, Expect, Write};
use crate::view::Versioned;
use axum::Json;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::access::{Certificate, Enrol, EnrolmentToken, InvalidToken, Renew};
use std::net::IpAddr;
use std::sync::Arc;

/// The reason to refuse a token of which there is no record.
const UNKNOWN_TOKEN: &str =
    "this token is unknown: it was withdrawn, or its node was revoked or deleted";

/// The number of attempts at an enrolment while the node is changed concurrently.
const ATTEMPTS: usize = 8;

/// Get a node's first certificate with a one-time token
///
/// Requires no authentication except the token. Earlier certificates of the node become invalid.
/// The same key may send the request again with the same token, and gets the same certificate while
/// that is in force.
#[utoipa::path(operation_id = "enrol_node", post, path = "/v1/enrol", tag = "nodes", request_body = Enrol,
    responses((status = 201, body = Certificate), CommonErrors, BodyErrors))]
pub(super) async fn enrol(
    State(controller): State<Arc<Controller>>,
    mut enrolling: Enrolling,
) -> Result<(StatusCode, Json<Certificate>), HandlerError> {
    for _ in 0..ATTEMPTS {
        let found = controller.node_of_token(&mut enrolling).await?;
        if let Some(certificate) = controller.enrol(&enrolling, found).await? {
            return Ok((StatusCode::CREATED, Json(certificate)));
        }
    }
    Err(Refusal::unavailable("the node is being changed by other requests; try again").into())
}

/// A node with an enrolment token, after all checks that need no store.
pub(super) struct Enrolling {
    checked: Checked,
    token: EnrolmentToken,
    csr: SigningRequest,
    address: IpAddr,
    origin: Origin,
    /// The token and its node as the view contains them; `None` once they are to be read from the store.
    known: Option<NodeOfToken>,
}

/// The node that a token enrols, and the record of the token.
type NodeOfToken = (Versioned<NodeRecord>, EnrolmentRecord);

impl FromRequest<Arc<Controller>> for Enrolling {
    type Rejection = Refusal;

    async fn from_request(request: Request, controller: &Arc<Controller>) -> Result<Self, Refusal> {
        let extensions = request.extensions();
        let address = extensions
            .get::<Peer>()
            .expect("the listener sets it")
            .address;
        let id = extensions.get::<RequestId>().expect("it is set").clone();
        let Message(enrol) = Message::<Enrol>::from_request(request, controller).await?;
        let token = controller.enrolment_token(&enrol.token, address)?;
        let known = controller.known_token(&token, address)?;
        controller.check_node(&token.node, &enrol)?;
        // Another controller may have created a token that the view does not contain, so the store is asked.
        let checked = match &known {
            Some(_) => controller.enrolment_rate(&token)?,
            None => controller.stranger(address)?,
        };
        // It costs more than all checks before.
        let csr = controller.signing_request(&enrol.csr)?;
        Ok(Enrolling {
            checked,
            origin: Origin::node(&token.node, address, id),
            token,
            csr,
            address,
            known,
        })
    }
}

impl Controller {
    /// Parses a token of this controller's authority.
    fn enrolment_token(&self, text: &str, address: IpAddr) -> Result<EnrolmentToken, Refusal> {
        let refused = |what: &str| self.invalid_token(address, what);
        let token: EnrolmentToken = text
            .parse()
            .map_err(|error: InvalidToken| refused(&error.to_string()))?;
        if !self.authority.trusts(token.authority_sha256.as_bytes()) {
            let what = "this token is for a controller with another authority";
            return Err(refused(what));
        }
        Ok(token)
    }

    /// Returns what the view contains of a token; `None` if it contains no token of this identifier.
    fn known_token(
        &self,
        token: &EnrolmentToken,
        address: IpAddr,
    ) -> Result<Option<NodeOfToken>, Refusal> {
        let record = self
            .view()
            .node(&token.node)
            .map(|(_, record)| record.clone());
        let enrolments = record.iter().flat_map(|record| &record.value.enrolments);
        let Some(known) = enrolments.clone().find(|known| known.id == token.id) else {
            return Ok(None);
        };
        if !is_token(known, token) {
            return Err(self.invalid_token(address, UNKNOWN_TOKEN));
        }
        self.check_expiry(known, address)?;
        let enrolment = known.clone();
        Ok(record.map(|record| (record, enrolment)))
    }

    /// Rejects a token that has expired.
    fn check_expiry(&self, known: &EnrolmentRecord, address: IpAddr) -> Result<(), Refusal> {
        if known.expires_unix_ms <= unix_ms() {
            return Err(self.invalid_token(address, "this token has expired"));
        }
        Ok(())
    }

    /// Counts a failure of the address, and returns the refusal of its token.
    fn invalid_token(&self, address: IpAddr, what: &str) -> Refusal {
        let refusal = Refusal::forbidden(format!(
            "{what}; create a new one: POST /v1/nodes/NAME/enrolment"
        ));
        self.failed(address, "enrolment", refusal)
    }

    /// Enrols a node with a token of this authority. Returns `None` if the node was changed
    /// concurrently.
    async fn enrol(
        &self,
        enrolling: &Enrolling,
        (record, enrolment): NodeOfToken,
    ) -> Result<Option<Certificate>, HandlerError> {
        let Some(used) = enrolment.used else {
            return self.use_token(enrolling, record).await;
        };
        let (node, csr) = (&enrolling.token.node, &enrolling.csr);
        let again = self.repeated_response(&record.value, &used, node, csr);
        let refused = || self.invalid_token(enrolling.address, "this token was already used");
        Ok(Some(again.ok_or_else(refused)?))
    }

    /// Issues the certificate for an unused token. Returns `None` if the node was changed
    /// concurrently.
    async fn use_token(
        &self,
        enrolling: &Enrolling,
        record: Versioned<NodeRecord>,
    ) -> Result<Option<Certificate>, HandlerError> {
        let Enrolling {
            checked,
            token,
            csr,
            origin,
            ..
        } = enrolling;
        let (node, read) = (&token.node, Expect::Revision(record.revision));
        let by = origin.changes(node, record.value.changed_in(record.revision));
        let about = About::tenant(&record.value.tenant).node(node).by(by);
        let certificate = self.sign(csr, node)?;
        let mut record = record.value;
        let is_again = !record.certificates.is_empty();
        let used = used(csr, &certificate);
        record.use_token(&token.id, used, certificate.issued.clone());
        let writes = vec![put_node(node, record, read)];
        let message = format!("node {node} was enrolled with the token {}", token.id);
        match self
            .commit(checked, writes, about, "node_enrolled", message)
            .await
        {
            Ok(_) => {
                if is_again {
                    self.lock_out_earlier(node, checked, origin).await;
                }
                Ok(Some(self.answer(node, certificate)))
            }
            // The record is read again from the store, which contains the conflicting change.
            Err(Error::Conflict { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the secrets of the tracks of a node that was enrolled again: those who had its earlier
    /// certificates know them. The node is enrolled even if that fails.
    async fn lock_out_earlier(&self, node: &Name, checked: &Checked, origin: &Origin) {
        let by = format!("the node {node}, enrolled again,");
        if self
            .rekey_tracks_of(node, checked, origin, &by)
            .await
            .is_err()
        {
            tracing::error!(
                %node,
                "the node was enrolled again, but not every secret of its tracks was replaced: \
                 run `hawser ctl track rekey` for each"
            );
        }
    }

    /// Refuses a request by a node that the token does not enrol.
    fn check_node(&self, node: &Name, enrol: &Enrol) -> Result<(), Refusal> {
        let Some(other) = enrol.node.as_ref().filter(|other| *other != node) else {
            return Ok(());
        };
        self.metrics.refused("enrolment_of_another");
        Err(Refusal::forbidden(format!(
            "this token enrols {node}, not {other}; it was not used and remains valid"
        )))
    }
}

/// Get a node's next certificate
///
/// The certificate in use remains valid until it expires, regardless of the number of requests. One that
/// has expired by its date can be renewed if controllers have not run for its lifetime since it was issued:
/// the date may have been wrong, or no controller was there to renew it.
#[utoipa::path(operation_id = "renew_certificate", post, path = "/v1/nodes/{node}/certificate", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = Renew,
    responses((status = 201, body = Certificate), CommonErrors, BodyErrors))]
pub(super) async fn renew(
    State(controller): State<Arc<Controller>>,
    Renewing(caller): Renewing,
    Path(node): Path<Name>,
    Message(renew): Message<Renew>,
) -> Result<(StatusCode, Json<Certificate>), HandlerError> {
    caller.must_be(&node)?;
    controller.may_change(&node)?;
    let request = controller.signing_request(&renew.csr)?;
    let certificate = controller
        .retrying(|| controller.try_renew(&caller, &node, &request))
        .await?;
    Ok((
        StatusCode::CREATED,
        Json(controller.answer(&node, certificate)),
    ))
}

/// Returns whether the record is that of the token. Digests are compared, so the time of the comparison
/// reveals nothing about the secret.
fn is_token(known: &EnrolmentRecord, token: &EnrolmentToken) -> bool {
    known.id == token.id && known.secret_sha256 == sha256_hex(&token.secret)
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

/// Returns the write of a node after a requested change.
pub(super) fn put_node(name: &Name, node: NodeRecord, read: Expect) -> Write {
    Write::put(
        key::of(key::NODE, name),
        emit(&NodeRecord {
            changed_in: None,
            ..node
        }),
    )
    .when(read)
}

impl Controller {
    /// Returns the node that a token enrols, and the record of the token: as the view contains them at first, and
    /// then from the store.
    async fn node_of_token(&self, enrolling: &mut Enrolling) -> Result<NodeOfToken, HandlerError> {
        if let Some(known) = enrolling.known.take() {
            return Ok(known);
        }
        let token = &enrolling.token;
        let key = key::of(key::NODE, &token.node);
        let entry = self.store(&enrolling.checked).get(&key).await?;
        let found = entry.and_then(|entry| {
            let value = parse::<NodeRecord>(&key, &entry.value)?;
            let enrolment = value.enrolments.iter().find(|known| is_token(known, token));
            let (enrolment, revision) = (enrolment?.clone(), entry.revision);
            Some((Versioned { value, revision }, enrolment))
        });
        let unknown = || self.invalid_token(enrolling.address, UNKNOWN_TOKEN);
        let (record, enrolment) = found.ok_or_else(unknown)?;
        self.check_expiry(&enrolment, enrolling.address)?;
        Ok((record, enrolment))
    }

    /// Returns the response to the first use of the token by the same key, if its certificate is
    /// still accepted.
    fn repeated_response(
        &self,
        record: &NodeRecord,
        used: &UsedRecord,
        node: &Name,
        request: &SigningRequest,
    ) -> Option<Certificate> {
        let issued = record.certificate(&used.serial)?;
        let is_same = used.key_sha256 == request.key_sha256();
        let (pem, issued, renew_unix_ms) =
            (used.certificate.clone(), issued.clone(), used.renew_unix_ms);
        is_same.then(|| {
            self.answer(
                node,
                NodeCertificate {
                    pem,
                    issued,
                    renew_unix_ms,
                },
            )
        })
    }

    /// Issues one more certificate of a node and stores it.
    async fn try_renew(
        &self,
        caller: &Certified,
        node: &Name,
        request: &SigningRequest,
    ) -> Result<NodeCertificate, HandlerError> {
        let found = self.view().node(node).map(|(_, record)| record.clone());
        let Versioned {
            value: mut record,
            revision,
        } = found.ok_or_else(|| Refusal::missing_node(node))?;
        let certificate = self.sign(request, node)?;
        record.renew(certificate.issued.clone(), &caller.node.serial);
        let by = caller.origin.changes(node, record.changed_in(revision));
        let about = About::tenant(&record.tenant).node(node).by(by);
        let write = put_node(node, record, Expect::Revision(revision));
        let message = format!("node {node} renewed its certificate");
        self.commit(
            &caller.checked,
            vec![write],
            about,
            "certificate_renewed",
            message,
        )
        .await?;
        Ok(certificate)
    }

    fn signing_request(&self, csr: &str) -> Result<SigningRequest, Refusal> {
        SigningRequest::parse(csr).map_err(|error| Refusal::meaningless(error.to_string()))
    }

    fn sign(&self, request: &SigningRequest, node: &Name) -> Result<NodeCertificate, Refusal> {
        let life = self.config.certificate_life();
        let signed = self.authority.sign(request, node, life);
        let mut signed = signed.map_err(|error| Refusal::meaningless(error.to_string()))?;
        signed.issued.run_time_s = Some(self.view().run_time.total_s());
        Ok(signed)
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

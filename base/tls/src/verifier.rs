use crate::{Error, Subject, authority_subject, digest, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use std::sync::Arc;
use std::time::SystemTime;

/// Verifies servers that cannot be verified by an authority and a host name.
#[derive(Debug)]
pub struct ServerVerifier {
    trust: Trust,
    /// The names of the authorities by which a server with several certificates chooses one. None:
    /// nothing is said of them.
    named: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Trust {
    /// Servers of these authorities under their host names.
    Authorities(Arc<WebPkiServerVerifier>),
    /// The authority with this digest.
    Pinned([u8; 32]),
    /// The server's own certificate, with this digest.
    Certificate([u8; 32]),
    /// Nodes that this verifier accepts, under their own names.
    Nodes(Arc<dyn ClientCertVerifier>),
}

impl ServerVerifier {
    /// Returns a verifier that accepts a server with a certificate of `authorities` for its host name.
    /// Names the authorities to the server, which presents a certificate of one of them if it also has
    /// others.
    ///
    /// # Errors
    /// If there are no authorities.
    pub fn trusting(authorities: Arc<RootCertStore>) -> Result<Arc<Self>, Error> {
        let named = authorities.subjects();
        let verifier = WebPkiServerVerifier::builder_with_provider(authorities, provider())
            .build()
            .map_err(|error| Error::Authority(error.to_string()))?;
        Ok(ServerVerifier::new(Trust::Authorities(verifier), named))
    }

    /// Returns a verifier that accepts a server whose chain contains the authority with the SHA-256
    /// digest `authority`, is signed by it, and is valid for the server's host name.
    pub fn pinned(authority: [u8; 32]) -> Arc<Self> {
        let named = vec![authority_subject()];
        ServerVerifier::new(Trust::Pinned(authority), named)
    }

    /// Returns a verifier that accepts the certificate with the SHA-256 digest `certificate`, whatever name
    /// and validity it has, as browsers do (`serverCertificateHashes`).
    pub fn certificate(certificate: [u8; 32]) -> Arc<Self> {
        ServerVerifier::new(Trust::Certificate(certificate), vec![])
    }

    /// Returns a verifier that accepts a node of `authorities` if its certificate has the name that
    /// the client connects to as common name.
    ///
    /// The certificates that a controller issues to nodes contain no host name and are meant for
    /// TLS clients, because nodes are clients of the controller. A server's certificate is
    /// therefore checked as that of a client.
    ///
    /// # Errors
    /// If there are no authorities.
    pub fn nodes(authorities: Arc<RootCertStore>) -> Result<Arc<Self>, Error> {
        let nodes = WebPkiClientVerifier::builder_with_provider(authorities, provider())
            .build()
            .map_err(|error| Error::Authority(error.to_string()))?;
        Ok(ServerVerifier::new(Trust::Nodes(nodes), vec![]))
    }

    fn new(trust: Trust, named: Vec<DistinguishedName>) -> Arc<Self> {
        Arc::new(ServerVerifier {
            trust,
            named,
            provider: provider(),
        })
    }

    /// Returns a verifier that trusts only the authority with the digest `authority`, which is among
    /// `intermediates`.
    fn trusting_pinned(
        &self,
        authority: &[u8; 32],
        intermediates: &[CertificateDer<'_>],
    ) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
        let authority = intermediates
            .iter()
            .find(|presented| digest(presented) == *authority)
            .ok_or(CertificateError::UnknownIssuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.trust {
            Trust::Authorities(verifier) => verifier.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            ),
            Trust::Pinned(authority) => self
                .trusting_pinned(authority, intermediates)?
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            Trust::Certificate(certificate) => match digest(end_entity) == *certificate {
                true => Ok(ServerCertVerified::assertion()),
                false => Err(CertificateError::UnknownIssuer.into()),
            },
            Trust::Nodes(nodes) => {
                nodes.verify_client_cert(end_entity, intermediates, now)?;
                if Subject::of(end_entity).is_ok_and(|node| node.name == server_name.to_str()) {
                    Ok(ServerCertVerified::assertion())
                } else {
                    Err(CertificateError::NotValidForName.into())
                }
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        (!self.named.is_empty()).then_some(&self.named)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Verifies clients whatever the date, for a server that compares the dates of each request itself: it can
/// say why it refuses a certificate, and let it be renewed.
#[derive(Debug)]
pub struct UndatedClients(Arc<dyn ClientCertVerifier>);

impl UndatedClients {
    /// Returns a verifier that accepts whom `verifier` accepts at some time.
    pub fn of(verifier: Arc<dyn ClientCertVerifier>) -> Arc<Self> {
        Arc::new(UndatedClients(verifier))
    }
}

impl ClientCertVerifier for UndatedClients {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let begin = Subject::of(end_entity).ok().and_then(|subject| {
            let begin = subject.not_before.duration_since(SystemTime::UNIX_EPOCH);
            begin.ok().map(UnixTime::since_unix_epoch)
        });
        self.0
            .verify_client_cert(end_entity, intermediates, begin.unwrap_or(now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
        ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };

    type Authority = CertifiedIssuer<'static, KeyPair>;

    #[test]
    fn a_pinned_authority_has_the_name_of_the_certificate() {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        parameters
            .distinguished_name
            .push(DnType::CommonName, crate::AUTHORITY_NAME);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(parameters, key).unwrap();
        let subjects = trusted(&authority).subjects();
        let named = |verifier: &ServerVerifier| -> Vec<Vec<u8>> {
            let named = verifier.root_hint_subjects().unwrap_or_default();
            named.iter().map(|name| name.as_ref().to_vec()).collect()
        };
        let wanted: Vec<Vec<u8>> = subjects.iter().map(|name| name.as_ref().to_vec()).collect();
        assert_eq!(named(&ServerVerifier::pinned([0; 32])), wanted);
        let trusting = ServerVerifier::trusting(trusted(&authority)).unwrap();
        assert_eq!(named(&trusting), wanted);
    }

    fn authority() -> Authority {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
    }

    fn trusted(authority: &Authority) -> Arc<RootCertStore> {
        crate::authorities(&authority.pem()).unwrap()
    }

    /// Returns the certificate of a node, or of the server of a host.
    fn signed(
        authority: &Authority,
        node: Option<&str>,
        host: Option<&str>,
    ) -> CertificateDer<'static> {
        let hosts = host.map(str::to_owned).into_iter().collect::<Vec<_>>();
        let mut parameters = CertificateParams::new(hosts).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        if let Some(node) = node {
            parameters.distinguished_name.push(DnType::CommonName, node);
        }
        parameters.extended_key_usages = vec![match host {
            Some(_) => ExtendedKeyUsagePurpose::ServerAuth,
            None => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate().unwrap();
        parameters.signed_by(&key, authority).unwrap().der().clone()
    }

    fn accepts(verifier: &ServerVerifier, chain: &[CertificateDer<'_>], name: &str) -> bool {
        let name = ServerName::try_from(name).unwrap();
        let verified =
            verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now());
        verified.is_ok()
    }

    #[test]
    fn a_pinned_authority_accepts_its_servers_by_name() {
        let (authority, other) = (authority(), self::authority());
        let verifier = ServerVerifier::pinned(digest(authority.der()));
        let chain = |signer: &Authority| {
            let server = signed(signer, None, Some("controller.example"));
            [server, signer.der().clone(), authority.der().clone()]
        };
        assert!(accepts(&verifier, &chain(&authority), "controller.example"));
        assert!(!accepts(&verifier, &chain(&authority), "another.example"));
        assert!(!accepts(&verifier, &chain(&other), "controller.example"));
        assert!(!accepts(
            &verifier,
            &chain(&authority)[..1],
            "controller.example"
        ));
    }

    #[test]
    fn a_certificate_that_is_known_is_accepted_under_any_name() {
        let authority = authority();
        let [known, other] = [(); 2].map(|()| signed(&authority, None, Some("a.example")));
        let verifier = ServerVerifier::certificate(digest(&known));
        assert!(accepts(&verifier, &[known], "controller.example"));
        assert!(!accepts(&verifier, &[other], "a.example"));
    }

    #[test]
    fn a_node_is_accepted_under_its_own_name() {
        let (authority, other) = (authority(), self::authority());
        let verifier = ServerVerifier::nodes(trusted(&authority)).unwrap();
        let node = |signer: &Authority| [signed(signer, Some("edge-1"), None)];
        assert!(accepts(&verifier, &node(&authority), "edge-1"));
        assert!(!accepts(&verifier, &node(&authority), "edge-2"));
        assert!(!accepts(&verifier, &node(&other), "edge-1"));
    }
    #[test]
    fn an_undated_client_needs_its_authority_and_no_date() {
        let (authority, other) = (authority(), self::authority());
        let verifier = WebPkiClientVerifier::builder_with_provider(trusted(&authority), provider());
        let verifier = UndatedClients::of(verifier.build().unwrap());
        let accepts = |signer: &Authority, year: i32| {
            let mut parameters = CertificateParams::default();
            parameters.not_before = rcgen::date_time_ymd(year, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(year, 2, 1);
            let key = KeyPair::generate().unwrap();
            let node = parameters.signed_by(&key, signer).unwrap();
            let verified = verifier.verify_client_cert(node.der(), &[], UnixTime::now());
            verified.is_ok()
        };
        for year in [1970, 2020, 2999] {
            assert!(accepts(&authority, year), "{year}");
            assert!(!accepts(&other, year), "{year}");
        }
    }
}

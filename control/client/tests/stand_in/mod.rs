//! A server on loopback that speaks TLS like a controller, with a router that the test provides.

use axum::Router;
use hawser_client::Controller;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A certificate authority for a test.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = named("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Authority {
            pem: certificate.pem(),
            der: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns a token that names this authority.
    pub(crate) fn token(&self) -> String {
        let digest = hex::encode(Sha256::digest(&self.der));
        format!(
            "hawser1.edge-1.{}.{}.{digest}",
            "1d".repeat(8),
            "5e".repeat(32)
        )
    }

    /// Signs a certificate for the key of a request.
    pub(crate) fn sign(&self, csr: &str, node: &str) -> String {
        let request = rcgen::CertificateSigningRequestParams::from_pem(csr).unwrap();
        named(node)
            .signed_by(&request.public_key, &self.issuer)
            .unwrap()
            .pem()
    }

    /// Serves `router` with a certificate of this authority, until the runtime is shut down.
    pub(crate) async fn serve(&self, router: Router) -> Controller {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, &self.issuer).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let clients = clients.allow_unauthenticated().build().unwrap();
        let chain = vec![certificate.der().clone(), self.der.clone()];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(
            listener,
            TlsAcceptor::from(Arc::new(config)),
            router,
        ));
        format!("https://{address}").parse().unwrap()
    }
}

/// Returns the public key of a certificate signing request.
pub(crate) fn key_of(csr: &str) -> Vec<u8> {
    let request = rcgen::CertificateSigningRequestParams::from_pem(csr).unwrap();
    rcgen::PublicKeyData::der_bytes(&request.public_key).to_vec()
}

/// Whether the client of a request presented a certificate of the authority.
#[derive(Clone, Copy)]
pub(crate) struct Certified(pub(crate) bool);

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, router: Router) {
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, router) = (acceptor.clone(), router.clone());
        tokio::spawn(async move {
            // A client that does not trust this server aborts the handshake, which its test checks.
            let Ok(socket) = acceptor.accept(socket).await else {
                return;
            };
            let certified = Certified(socket.get_ref().1.peer_certificates().is_some());
            let router = router.layer(axum::Extension(certified));
            let service = TowerToHyperService::new(router);
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Returns an address of a controller at which no server listens.
pub(crate) async fn unreachable_controller() -> Controller {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("https://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap()
}

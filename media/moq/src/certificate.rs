//! The certificate of the server, and the configuration of TLS and QUIC with it.

use crate::trust::Trust;
use hawser_io::clock::Period;
use hawser_tls::{Identity, ServerVerifier, provider};
use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::version;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

/// The time for which a certificate without authority is valid. Browsers accept a certificate by its
/// fingerprint if it is valid for at most 14 days.
const VALIDITY: time::Duration = time::Duration::days(13);

/// The time after which a certificate is replaced.
const RENEWAL: Duration = Duration::from_secs(7 * 24 * 3600);

/// The shortest time between two attempts to replace it.
pub(crate) const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// The tolerated difference of clocks.
const SKEW: time::Duration = time::Duration::hours(1);

/// The time without a packet after which a session has ended.
const IDLE: Duration = Duration::from_secs(10);

/// The pause between packets that keep a session.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// The maximum number of unacknowledged bytes of a session: 90 Mb/s for 300 ms.
const SEND_WINDOW: u64 = 4 << 20;

/// The maximum number of unread bytes of a session: requests only.
pub(crate) const RECEIVE_WINDOW: u32 = 1 << 20;

/// The maximum number of unread bytes of a source: 90 Mb/s for 300 ms.
pub(crate) const SOURCE_WINDOW: u32 = 4 << 20;

/// The streams that a client may have open: two requests for each track.
const STREAMS: u32 = 256;

/// Makes a certificate that no authority signs.
pub(crate) fn self_signed(address: IpAddr) -> Result<Identity, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["localhost".to_owned(), address.to_string()])?;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "hawser relay");
    let now = OffsetDateTime::now_utc();
    params.not_before = now - SKEW;
    params.not_after = now - SKEW + VALIDITY;
    let certificate = params.self_signed(&key)?;
    Ok(Identity::from_pem(&certificate.pem(), &key.serialize_pem())
        .expect("what rcgen writes is PEM"))
}

/// Returns the period for which a certificate without authority that is made now serves.
pub(crate) fn renewal() -> Period {
    let now = SystemTime::now();
    Period::new(now - SKEW.unsigned_abs(), now + RENEWAL)
}

/// Returns the fingerprint of an identity: the SHA-256 digest of its certificate, hexadecimal.
pub(crate) fn fingerprint(identity: &Identity) -> String {
    let chain = identity.chain();
    let own = chain.first().map(hawser_tls::digest);
    own.map(hex::encode).unwrap_or_default()
}

/// Returns the configuration of a server with these protocols.
pub(crate) fn server_config(
    identity: &Identity,
    protocols: Vec<Vec<u8>>,
    window: u32,
) -> Result<noq::ServerConfig, rustls::Error> {
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(identity.chain(), identity.key())?;
    tls.alpn_protocols = protocols;
    let tls = QuicServerConfig::try_from(tls)
        .expect("the provider has the suite of QUIC's first packets");
    let mut config = noq::ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(Arc::new(transport(window)));
    Ok(config)
}

/// Returns the configuration of a client of a source of MoQ, with one of these protocols.
pub(crate) fn client_config(
    trust: &Trust,
    protocols: &[&str],
) -> Result<noq::ClientConfig, rustls::Error> {
    let tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?;
    let mut tls = match trust {
        Trust::Authorities(roots) => tls.with_root_certificates(Arc::clone(roots)),
        Trust::Certificate(digest) => tls
            .dangerous()
            .with_custom_certificate_verifier(ServerVerifier::certificate(*digest)),
    }
    .with_no_client_auth();
    let protocols = protocols
        .iter()
        .map(|protocol| protocol.as_bytes().to_vec());
    tls.alpn_protocols = protocols.collect();
    let tls = QuicClientConfig::try_from(tls)
        .expect("the provider has the suite of QUIC's first packets");
    let mut config = noq::ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport(SOURCE_WINDOW)));
    Ok(config)
}

fn transport(window: u32) -> noq::TransportConfig {
    let mut transport = noq::TransportConfig::default();
    transport
        .max_idle_timeout(Some(IDLE.try_into().expect("ten seconds fit")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .send_window(SEND_WINDOW)
        .receive_window(window.into())
        .max_concurrent_bidi_streams(STREAMS.into())
        .max_concurrent_uni_streams(STREAMS.into())
        .congestion_controller_factory(Arc::new(noq::congestion::Bbr3Config::default()));
    transport
}

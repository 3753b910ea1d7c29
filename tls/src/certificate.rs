use crate::Error;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The subject of a certificate, with its period of validity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The common name.
    pub name: String,
    /// The serial number of the certificate, hexadecimal.
    pub serial: String,
    /// The begin of the validity.
    pub not_before: SystemTime,
    /// The end of the validity.
    pub not_after: SystemTime,
}

impl Subject {
    /// Reads a certificate. Does not verify it.
    ///
    /// # Errors
    /// If it is not X.509, or has no common name.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Subject, Error> {
        let (_, certificate) = X509Certificate::from_der(certificate)
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let mut names = certificate.subject().iter_common_name();
        let name = names.next().and_then(|name| name.as_str().ok());
        Ok(Subject {
            name: name.ok_or(Error::NoName)?.to_owned(),
            serial: hex::encode(certificate.raw_serial()),
            not_before: time(certificate.validity().not_before),
            not_after: time(certificate.validity().not_after),
        })
    }
}

/// Returns the SHA-256 digest of a certificate (DER).
pub fn digest(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// Returns a time of a certificate, not before 1970.
fn time(time: ASN1Time) -> SystemTime {
    let seconds = time.timestamp().max(0).unsigned_abs();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SerialNumber};

    fn certificate(name: Option<&str>) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        if let Some(name) = name {
            parameters.distinguished_name.push(DnType::CommonName, name);
        }
        parameters.serial_number = Some(SerialNumber::from_slice(&[0x12, 0xab]));
        parameters.not_before = rcgen::date_time_ymd(1970, 1, 2);
        parameters.not_after = rcgen::date_time_ymd(1970, 1, 3);
        let key = KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_says_its_subject_and_validity() {
        let day = Duration::from_secs(86_400);
        let expected = Subject {
            name: "edge-1".to_owned(),
            serial: "12ab".to_owned(),
            not_before: SystemTime::UNIX_EPOCH + day,
            not_after: SystemTime::UNIX_EPOCH + 2 * day,
        };
        assert_eq!(Subject::of(&certificate(Some("edge-1"))).unwrap(), expected);
    }

    #[test]
    fn a_certificate_without_a_name_is_an_error() {
        assert!(matches!(
            Subject::of(&certificate(None)),
            Err(Error::NoName)
        ));
        let nonsense = CertificateDer::from(vec![1, 2, 3]);
        assert!(matches!(Subject::of(&nonsense), Err(Error::Certificate(_))));
    }
}

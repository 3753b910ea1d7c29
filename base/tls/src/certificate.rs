use crate::Error;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use std::fmt::Display;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};

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

    /// Returns what is wrong if the certificate is not valid at `now` by this machine's clock. Its
    /// servers are then rejected too, with a reason that sounds as if it was their fault.
    pub fn outside_validity(&self, now: SystemTime) -> Option<String> {
        let (from, until) = (date(self.not_before), date(self.not_after));
        let (now_is, name) = (date(now), &self.name);
        if now < self.not_before {
            return Some(format!(
                "the clock of this machine is wrong: it says {now_is}, and the certificate of {name} is from {from}"
            ));
        }
        (now > self.not_after).then(|| {
            format!(
                "the clock of this machine is wrong, or the certificate of {name} has expired: it says {now_is}, and the \
                 certificate ends at {until}"
            )
        })
    }
}

/// Returns the first host name that a certificate is for; `None` if it is for none, or for all of a domain, only.
///
/// # Errors
/// If it is not X.509.
pub fn host_name(certificate: &CertificateDer<'_>) -> Result<Option<String>, Error> {
    let wrong = |error: &dyn Display| Error::Certificate(error.to_string());
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| wrong(&error))?;
    let names = certificate.subject_alternative_name();
    let names = names.map_err(|error| wrong(&error))?;
    let mut names = names
        .into_iter()
        .flat_map(|names| &names.value.general_names);
    Ok(names.find_map(|name| match name {
        GeneralName::DNSName(name) if !name.starts_with('*') => Some((*name).to_owned()),
        _ => None,
    }))
}

/// Returns a time as people read it, UTC.
fn date(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let (date, hour, minute) = (time.date(), time.hour(), time.minute());
    format!("{date} {hour:02}:{minute:02} UTC")
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
    fn a_certificate_says_when_the_clock_is_outside_its_validity() {
        let subject = Subject::of(&certificate(Some("edge-1"))).unwrap();
        let at = |hours: u64| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(hours * 3600);
            subject.outside_validity(now)
        };
        assert_eq!((at(24), at(48)), (None, None));
        let before = at(23).unwrap();
        assert!(before.contains("says 1970-01-01 23:00 UTC"), "{before}");
        assert!(before.contains("is from 1970-01-02 00:00 UTC"), "{before}");
        let after = at(49).unwrap();
        assert!(after.contains("ends at 1970-01-03 00:00 UTC"), "{after}");
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

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::fs;
use std::path::Path;

/// Signs certificates for the ends of tunnels.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Writes the files of an end named `name`; returns its `[tls]` section.
    pub(crate) fn credentials(&self, folder: &Path, name: &str) -> String {
        self.credentials_from(folder, name, 2000)
    }

    /// As [`Self::credentials`], with a certificate that is valid from this year on.
    pub(crate) fn credentials_from(&self, folder: &Path, name: &str, year: i32) -> String {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(year, 1, 1);
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(folder.join(format!("{name}.authority.pem")), &self.pem).unwrap();
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        let file = folder.join(format!("{name}.key"));
        hawser_io::file::replace(&file, key.serialize_pem().as_bytes(), 0o600).unwrap();
        format!(
            "[tls]\nauthority = \"{name}.authority.pem\"\ncertificate = \"{name}.pem\"\nkey = \"{name}.key\"\n"
        )
    }
}

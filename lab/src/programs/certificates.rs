//! Certificates of tunnel clients and servers.

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::Path;

/// Writes a certificate authority, `authority.pem`, and for each name a certificate that it issued
/// for clients and servers, `NAME.pem` with `NAME.key`.
pub fn write(folder: &Path, names: &[&str]) -> Result<()> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate()?;
    fs::write(
        folder.join("authority.pem"),
        authority.self_signed(&authority_key)?.pem(),
    )?;
    let issuer = Issuer::new(authority, authority_key);
    for name in names {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![(*name).to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, *name);
        fs::write(
            folder.join(format!("{name}.pem")),
            params.signed_by(&key, &issuer)?.pem(),
        )?;
        let file = folder.join(format!("{name}.key"));
        hawser_io::file::replace(&file, key.serialize_pem().as_bytes(), 0o600)?;
    }
    Ok(())
}

/// Returns the `[tls]` section of a configuration in the same folder as these files.
pub fn section(name: &str) -> String {
    format!(
        "[tls]\nauthority = \"authority.pem\"\ncertificate = \"{name}.pem\"\nkey = \"{name}.key\"\n"
    )
}

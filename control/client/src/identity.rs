use crate::error::{Error, credentials};
use hawser_io::clock::Period;
use hawser_io::file;
use hawser_model::access::TrustedAuthorities;
use hawser_model::{InvalidName, Name};
use hawser_tls::{Subject, certificates, digest};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Key and certificate of the node, in one file so that both change atomically.
const NODE: &str = "node.pem";
/// The certificate of the authority that the node trusts.
const AUTHORITY: &str = "authority.pem";
/// A key whose certificate has not been stored yet.
const PENDING: &str = "pending.key";

/// Upper bound on the size of what is written when the certificate arrives.
const ROOM_BYTES: usize = 32 * 1024;

/// The identity of a node, and the authority that it trusts. Its `Debug` output contains no key.
#[derive(Clone)]
pub struct Identity {
    pub(crate) node: Name,
    pub(crate) key_pem: String,
    pub(crate) certificate_pem: String,
    pub(crate) authority_pem: String,
    subject: Subject,
}

impl Identity {
    /// Creates an identity from a key, its certificate and the authority that signed it, all PEM.
    ///
    /// # Errors
    /// If the certificate cannot be read or does not contain a node's name.
    pub fn new(
        key_pem: String,
        certificate_pem: String,
        authority_pem: String,
    ) -> Result<Self, Error> {
        let certificates = certificates("the node's certificate", &certificate_pem)?;
        let subject = Subject::of(&certificates[0])?;
        let node = subject.name.parse().map_err(|error: InvalidName| {
            credentials("the node's certificate", error.to_string())
        })?;
        Ok(Identity {
            node,
            subject,
            key_pem,
            certificate_pem,
            authority_pem,
        })
    }

    /// Loads what [`Identity::store`] wrote.
    ///
    /// # Errors
    /// If a file is missing or cannot be used.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|source| Error::File { path, source })
        };
        let node = read(NODE)?;
        let sections = |wanted: &str| sections(&node, wanted);
        Identity::new(
            sections("PRIVATE KEY"),
            sections("CERTIFICATE"),
            read(AUTHORITY)?,
        )
    }

    /// Returns whether `folder` contains an identity, that is, the node has been enrolled.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(NODE).exists()
    }

    /// Stores a pending key with its certificate in `folder`. Both are on the disk when this
    /// returns.
    pub(crate) fn keep(
        pending: PendingKey,
        folder: &Path,
        certificate: String,
        authority: String,
    ) -> Result<Self, Error> {
        let identity = Identity::new(pending.key_pem, certificate, authority)?;
        identity.store(folder)?;
        let path = folder.join(PENDING);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(Error::File { path, source })
            }
            _ => Ok(identity),
        }
    }

    /// Writes `node.pem` (key and certificate, readable only by the owner) and `authority.pem` into
    /// `folder`, which is created if missing. Each file is replaced atomically: after a crash it is
    /// the old or the new one.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn store(&self, folder: &Path) -> Result<(), Error> {
        let failed = |source| Error::File {
            path: folder.to_owned(),
            source,
        };
        file::create_folder(folder, 0o777).map_err(failed)?;
        // The node's own file comes last: if it exists, so does the other.
        replace(&folder.join(AUTHORITY), &self.authority_pem)?;
        replace(
            &folder.join(NODE),
            &format!("{}{}", self.key_pem, self.certificate_pem),
        )
    }

    /// Replaces the authorities that the identity in `folder` trusts, if they are others. Returns
    /// whether they are. A new client is needed to trust them.
    ///
    /// # Errors
    /// If there is no certificate in the text, or the file cannot be read or written.
    pub fn trust(folder: &Path, authorities: &TrustedAuthorities) -> Result<bool, Error> {
        let pem = &authorities.certificates;
        hawser_tls::authorities(pem)?;
        let path = folder.join(AUTHORITY);
        let known = fs::read_to_string(&path).map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
        if known == *pem {
            return Ok(false);
        }
        replace(&path, pem)?;
        Ok(true)
    }

    /// Returns the node's name, the common name of the certificate.
    pub fn node(&self) -> &Name {
        &self.node
    }

    /// Returns the private key, PEM.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Returns the certificate, PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns the certificate of the authority that the node trusts, PEM.
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// Returns the SHA-256 digests of the certificates of the authorities that the node trusts,
    /// hexadecimal.
    pub fn authority_digests(&self) -> Vec<String> {
        digests(&self.authority_pem)
    }

    /// Returns whether this identity trusts all of the authorities. One that was loaded before
    /// [`Identity::trust`] may not.
    pub fn trusts(&self, authorities: &TrustedAuthorities) -> bool {
        let trusted = self.authority_digests();
        let mut authorities = digests(&authorities.certificates).into_iter();
        authorities.all(|authority| trusted.contains(&authority))
    }

    /// Returns when the certificate expires.
    pub fn expires(&self) -> SystemTime {
        self.subject.not_after
    }

    /// Returns when the node should request the next certificate: after two thirds of this one's
    /// lifetime.
    pub fn renew_at(&self) -> SystemTime {
        self.subject.not_before + self.life() * 2 / 3
    }

    /// Returns the period after which to renew the certificate. `grace` comes on top of the time until
    /// it is due. `renewed` is when this process has obtained the certificate, if it has: by a wrong clock
    /// each certificate would be due at once, and the next one is not requested before a tenth of the
    /// lifetime.
    pub fn serves(&self, grace: Duration, renewed: Option<Instant>) -> Period {
        let period = Period::new(self.subject.not_before, self.renew_at() + grace);
        match renewed {
            Some(at) => period.at_least((self.life() / 10).saturating_sub(at.elapsed())),
            None => period,
        }
    }

    /// Returns what is wrong if the certificate is not valid by the clock of this machine.
    pub fn outside_validity(&self) -> Option<String> {
        self.subject.outside_validity(SystemTime::now())
    }

    fn life(&self) -> Duration {
        let life = self
            .subject
            .not_after
            .duration_since(self.subject.not_before);
        life.unwrap_or_default()
    }
}

/// A key that is stored before its certificate is requested. It stays on the disk until the
/// certificate is stored, so that the request can be repeated with the same key if the answer was
/// lost or could not be stored.
pub(crate) struct PendingKey {
    pub(crate) key_pem: String,
    /// The certificate signing request, PEM.
    pub(crate) csr: String,
}

impl PendingKey {
    /// Generates a key, which is only in memory.
    pub(crate) fn generate() -> Result<Self, Error> {
        KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .and_then(|key| PendingKey::of(&key))
            .map_err(|error| credentials("a new key", error.to_string()))
    }

    /// Returns the key in `folder`, creating both if missing. Fails if the folder has no space for
    /// the certificate.
    pub(crate) fn prepare(folder: &Path) -> Result<Self, Error> {
        let failed = |source| Error::File {
            path: folder.to_owned(),
            source,
        };
        file::create_folder(folder, 0o777).map_err(failed)?;
        let path = folder.join(PENDING);
        let pending = match PendingKey::read(&path)? {
            Some(pending) => pending,
            None => {
                let pending = PendingKey::generate()?;
                replace(&path, &pending.key_pem)?;
                pending
            }
        };
        has_room(folder).map_err(failed)?;
        Ok(pending)
    }

    /// Returns the key in a file, if there is one that can be used: another one never got a
    /// certificate.
    fn read(path: &Path) -> Result<Option<Self>, Error> {
        match fs::read_to_string(path) {
            Ok(pem) => Ok(KeyPair::from_pem(&pem)
                .and_then(|key| PendingKey::of(&key))
                .ok()),
            Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File {
                path: path.to_owned(),
                source,
            }),
        }
    }

    fn of(key: &KeyPair) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        // The name comes from the token or the current certificate; the controller ignores the
        // request's.
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(key)?.pem()?;
        Ok(PendingKey {
            key_pem: key.serialize_pem(),
            csr,
        })
    }
}

/// Checks for disk space by writing as much as the certificate may need, and deleting it again.
fn has_room(folder: &Path) -> std::io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .tempfile_in(folder)?;
    file.write_all(&[0; ROOM_BYTES])?;
    file.as_file().sync_all()
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("node", &self.node)
            .field("expires", &self.subject.not_after)
            .finish()
    }
}

/// Returns the SHA-256 digests of certificates in a PEM text, hexadecimal.
fn digests(pem: &str) -> Vec<String> {
    let certificates = certificates("the authority's certificate", pem).unwrap_or_default();
    let digests = certificates.iter().map(|der| hex::encode(digest(der)));
    digests.collect()
}

/// Returns all sections of a kind in a PEM text.
fn sections(pem: &str, kind: &str) -> String {
    let (begin, end) = (
        format!("-----BEGIN {kind}-----"),
        format!("-----END {kind}-----"),
    );
    let mut inside = false;
    let mut found = String::new();
    for line in pem.lines() {
        inside |= line == begin;
        if inside {
            found.push_str(line);
            found.push('\n');
        }
        inside &= line != end;
    }
    found
}

/// Replaces a file that only its owner can read.
fn replace(path: &Path, text: &str) -> Result<(), Error> {
    file::replace_durably(path, text.as_bytes(), 0o600).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::DnType;
    use std::os::unix::fs::PermissionsExt;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn identity(name: &str) -> Result<Identity, Error> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(2026, 11, 1);
        params.not_after = rcgen::date_time_ymd(2026, 12, 1);
        let certificate = params.self_signed(&key).unwrap().pem();
        Identity::new(key.serialize_pem(), certificate.clone(), certificate)
    }

    #[test]
    fn what_is_stored_is_loaded_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("made/when/missing");
        assert!(!Identity::is_in(&folder));
        let stored = identity("edge-1").unwrap();
        stored.store(&folder).unwrap();
        stored.store(&folder).unwrap();
        let loaded = Identity::load(&folder).unwrap();
        assert_eq!(
            (loaded.key_pem, loaded.certificate_pem, loaded.authority_pem),
            (stored.key_pem, stored.certificate_pem, stored.authority_pem)
        );
        for entry in fs::read_dir(&folder).unwrap() {
            assert_eq!(
                entry.unwrap().metadata().unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    }

    #[test]
    fn a_key_stays_the_same_until_its_certificate_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("made/when/missing");
        let pending = PendingKey::prepare(&folder).unwrap();
        let mode = fs::metadata(folder.join(PENDING))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = PendingKey::prepare(&folder).unwrap();
        assert_eq!(again.key_pem, pending.key_pem);
        let certificate = identity("edge-1").unwrap().certificate_pem;
        let kept = Identity::keep(again, &folder, certificate.clone(), certificate).unwrap();
        assert_eq!(Identity::load(&folder).unwrap().key_pem, kept.key_pem);
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            2,
            "the key is in node.pem now"
        );
        assert_ne!(
            PendingKey::prepare(&folder).unwrap().key_pem,
            pending.key_pem
        );
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        let identity = identity("edge-1").unwrap();
        assert_eq!(
            identity
                .expires()
                .duration_since(identity.renew_at())
                .unwrap(),
            10 * DAY
        );
    }

    #[test]
    fn a_certificate_without_a_node_name_is_rejected() {
        assert!(identity("no node").is_err());
    }

    #[test]
    fn printing_it_shows_no_key() {
        assert!(!format!("{:?}", identity("edge-1").unwrap()).contains("KEY"));
    }
}

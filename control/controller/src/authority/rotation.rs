//! Replacing the authority while nodes are connected, in three steps. Between them, controllers are
//! restarted with the files, and nodes learn the certificates to trust.

use super::{CERTIFICATE_FILE, KEY_FILE, belongs, make, pem_of, write_private};
use crate::command::AuthorityStep as Step;
use anyhow::{Context, Result, bail, ensure};
use hawser_io::file;
use hawser_tls::certificates;
use rcgen::KeyPair;
use std::fs;
use std::path::Path;

/// The key of the next authority, before it issues certificates.
const NEXT_KEY_FILE: &str = "authority-next.key";

/// Performs a step on the files in `state`. Returns what to do next.
///
/// # Errors
/// Returns an error if the step before it was not performed, or a file cannot be used.
pub(crate) fn rotate(state: &Path, step: Step) -> Result<&'static str> {
    let [certificate, key, next] =
        [CERTIFICATE_FILE, KEY_FILE, NEXT_KEY_FILE].map(|name| state.join(name));
    let pem = read(&certificate)?;
    match step {
        Step::Add => {
            ensure!(
                !next.exists(),
                "{} exists: the next step is `switch`",
                next.display()
            );
            let (next_pem, next_key) = make()?;
            // The key is written first: a certificate without it could never be used.
            write_private(&next, &next_key)?;
            write_private(&certificate, &format!("{pem}{next_pem}"))?;
            Ok(
                "back up the files, copy them to the other controllers, restart all controllers, and wait until all nodes have connected; then `switch`",
            )
        }
        Step::Switch => {
            let text = file::read_secret(&next).context("the step before is `add`")?;
            trusted_of(&pem, &text)
                .context("authority-next.key is not trusted yet: remove it, then `add`")?;
            write_private(&key, &text)?;
            fs::remove_file(&next).with_context(|| format!("cannot remove {}", next.display()))?;
            Ok(
                "copy the files to the other controllers, restart all controllers, and wait until all nodes have renewed their certificates (`nodes.certificate_days`); then `remove`",
            )
        }
        Step::Remove => {
            if next.exists() {
                bail!("{} exists: the next step is `switch`", next.display());
            }
            let issuer = trusted_of(&pem, &file::read_secret(&key)?)?;
            write_private(&certificate, &issuer)?;
            Ok("copy the files to the other controllers and restart all controllers")
        }
    }
}

/// Returns the certificate of a key among the trusted ones, PEM.
fn trusted_of(pem: &str, key_pem: &str) -> Result<String> {
    let key = KeyPair::from_pem(key_pem)?;
    let trusted = certificates("the authority's certificate", pem)?;
    let certificate = trusted.iter().find(|der| belongs(&key, der));
    let certificate = certificate.context("there is no certificate for the key")?;
    Ok(pem_of(certificate))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

//! The private keys of a node under a controller, from which the keys of its pairs are derived. They
//! never leave the node.

use anyhow::{Context, Result, ensure};
use hawser_io::clock::unix_ms;
use hawser_io::file::replace_durably;
use hawser_node::SecretKey;
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::error;
use zeroize::Zeroizing;

/// The maximum number of keys: the current one and the next one.
const MAX_KEYS: usize = 2;

/// The file with a line for each key, the oldest first: its generation and 64 hexadecimal digits. Only
/// its owner can read it.
#[derive(Debug)]
pub(crate) struct KeyFile(PathBuf);

impl KeyFile {
    /// Returns the file of a state directory.
    pub(crate) fn at(directory: &Path) -> Self {
        KeyFile(directory.join("pair.keys"))
    }

    /// Reads the keys. Returns none if the file does not exist or cannot be used, which is logged: then
    /// the node makes another one.
    pub(crate) fn read(&self) -> Vec<SecretKey> {
        self.try_read().unwrap_or_else(|error| {
            error!("the node makes another key, because its own cannot be read: {error:#}");
            Vec::new()
        })
    }

    fn try_read(&self) -> Result<Vec<SecretKey>> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| self.0.display().to_string()),
        };
        let keys: Option<Vec<_>> = text.lines().map(parse).collect();
        let keys = keys.with_context(|| format!("{} is damaged", self.0.display()))?;
        ensure!(
            keys.len() <= MAX_KEYS,
            "{} has too many keys",
            self.0.display()
        );
        Ok(keys)
    }

    /// Makes a key and saves it after those of `kept`.
    ///
    /// # Errors
    /// If there are no random bytes, or the file cannot be written. It is then unchanged.
    pub(crate) fn make(&self, after: Option<u64>, kept: &[SecretKey]) -> Result<SecretKey> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut bytes[..]).context("the system has no random bytes")?;
        let made = SecretKey::new(SecretKey::next_generation(after, unix_ms() / 1000), &bytes);
        self.write(&[kept, std::slice::from_ref(&made)].concat())?;
        Ok(made)
    }

    /// Replaces the keys. They are on the disk when this returns.
    ///
    /// # Errors
    /// If the file cannot be written. It is then unchanged.
    pub(crate) fn write(&self, keys: &[SecretKey]) -> Result<()> {
        let mut text = Zeroizing::new(String::with_capacity(MAX_KEYS * 90));
        for key in keys {
            let digits = Zeroizing::new(hex::encode(*key.to_bytes()));
            writeln!(text, "{} {}", key.generation, *digits)?;
        }
        replace_durably(&self.0, text.as_bytes(), 0o600)
            .with_context(|| format!("cannot write {}", self.0.display()))
    }
}

/// Returns the time since a key was made.
pub(crate) fn age(newest: Option<&SecretKey>) -> Duration {
    let made = newest.map_or(0, |key| key.generation);
    Duration::from_secs((unix_ms() / 1000).saturating_sub(made))
}

fn parse(line: &str) -> Option<SecretKey> {
    let (generation, digits) = line.split_once(' ')?;
    let mut bytes = Zeroizing::new([0; 32]);
    hex::decode_to_slice(digits, &mut bytes[..]).ok()?;
    Some(SecretKey::new(generation.parse().ok()?, &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_saved_for_their_owner_alone_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::at(folder.path());
        assert_eq!(file.read(), []);
        let first = file.make(None, &[]).unwrap();
        let second = file
            .make(Some(first.generation), std::slice::from_ref(&first))
            .unwrap();
        assert_eq!(file.read(), [first, second.clone()]);
        file.write(std::slice::from_ref(&second)).unwrap();
        assert_eq!(file.read(), [second]);
        let mode = fs::metadata(&file.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_has_no_keys() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::at(folder.path());
        let line = format!("7 {}\n", "5e".repeat(32));
        for text in ["7", "7 5e\n", "x 5e\n", "\u{0}", &line.repeat(3)] {
            fs::write(&file.0, text).unwrap();
            assert_eq!(file.read(), [], "{text:?}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_saved_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::at(&folder.path().join("missing"));
        let error = file.make(None, &[]).unwrap_err().to_string();
        assert!(error.contains("pair.keys"), "{error}");
    }
}

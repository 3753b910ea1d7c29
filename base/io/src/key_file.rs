//! Files with a secret key in hexadecimal digits, which only their owner may read.

use crate::file;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use zeroize::Zeroizing;

/// Writes a new random key of `length` bytes to a file that must not exist yet. Only the owner can
/// read it.
pub fn generate(path: &Path, length: usize) -> io::Result<()> {
    let mut key = Zeroizing::new(vec![0; length]);
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    write(path, &key)
}

fn write(path: &Path, key: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let digits = Zeroizing::new(hex::encode(key));
    let written = writeln!(file, "{}", *digits).and_then(|()| file.sync_all());
    written.inspect_err(|_| {
        // A part of a key would be in the way of the next attempt. The error that counts is the first one.
        let _ = fs::remove_file(path);
    })
}

/// The length of the secret of a broadcast of media in bytes.
const MEDIA: usize = 32;

/// Writes a new secret of a broadcast of media to a file that must not exist yet. Only the owner can
/// read it.
pub fn generate_media(path: &Path) -> io::Result<()> {
    generate(path, MEDIA)
}

/// Reads the secret of a broadcast of media.
///
/// # Errors
/// As [`read`].
pub fn read_media(path: &Path) -> Result<Zeroizing<[u8; MEDIA]>, String> {
    read(path, "hawser keygen --media FILE")
}

/// The length of the secret of a broadcast for relays in bytes.
const RELAY: usize = 32;

/// Writes the secret of a broadcast for relays to a file that must not exist yet. Only the owner can read
/// it.
pub fn write_relay(path: &Path, secret: &[u8; RELAY]) -> io::Result<()> {
    write(path, secret)
}

/// Reads the secret of a broadcast for relays.
///
/// # Errors
/// As [`read`].
pub fn read_relay(path: &Path) -> Result<Zeroizing<[u8; RELAY]>, String> {
    read(path, "hawser keygen --relay-of MEDIA-KEY FILE")
}

/// Reads a key of `N` bytes; what was read is wiped from memory. `made_by` is the command that makes such files, for the error.
///
/// # Errors
/// A sentence that names the file, if it cannot be read, others may read it, or it is no key. It
/// never contains the file's content.
pub fn read<const N: usize>(path: &Path, made_by: &str) -> Result<Zeroizing<[u8; N]>, String> {
    let text = file::read_secret(path).map_err(|error| format!("key file: {error}"))?;
    let mut key = Zeroizing::new([0; N]);
    match hex::decode_to_slice(text.trim(), &mut *key) {
        Ok(()) => Ok(key),
        Err(_) => Err(format!(
            "key file {}: a key is {} hexadecimal digits; `{made_by}` makes one",
            path.display(),
            2 * N
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn read(path: &Path) -> Result<Zeroizing<[u8; 16]>, String> {
        super::read(path, "make-key FILE")
    }

    #[test]
    fn a_generated_key_is_private_and_readable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pair.key");
        generate(&path, 16).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_ne!(*read(&path).unwrap(), [0; 16]);
        assert_eq!(
            generate(&path, 16).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pair.key");
        generate(&path, 16).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(&path).unwrap_err().contains("chmod 600"));
    }

    #[test]
    fn a_bad_key_is_refused_without_being_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pair.key");
        generate(&path, 32).unwrap();
        let of_another_length = read(&path).unwrap_err();
        fs::write(&path, "deadbeef").unwrap();
        for message in [of_another_length, read(&path).unwrap_err()] {
            assert!(
                message.contains("32 hexadecimal digits; `make-key FILE`")
                    && !message.contains("deadbeef"),
                "{message}"
            );
        }
    }
}

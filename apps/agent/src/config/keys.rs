use hawser_wire::Key;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Permission bits of the group and of others.
const OTHERS: u32 = 0o077;

/// Writes a new random key to a file that must not exist yet. Only the owner can read it.
pub fn generate_key(path: &Path) -> io::Result<()> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{}", hex::encode(key))
}

/// Reads a key of 32 hexadecimal digits. The error never contains the file's content.
pub(super) fn read_key(path: &Path) -> Result<Key, String> {
    let failed = |error: io::Error| format!("key file {}: {error}", path.display());
    let mode = std::fs::metadata(path).map_err(failed)?.mode();
    if mode & OTHERS != 0 {
        return Err(format!(
            "key file {0}: others may read it; run `chmod 600 {0}`",
            path.display()
        ));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse_key(text.trim()).ok_or_else(|| {
        format!(
            "key file {}: a key is 32 hexadecimal digits; `hawser keygen FILE` makes one",
            path.display()
        )
    })
}

/// Parses a key of 32 hexadecimal digits.
pub(crate) fn parse_key(digits: &str) -> Option<Key> {
    let mut key = [0; 16];
    hex::decode_to_slice(digits, &mut key).ok()?;
    Some(Key::from_bytes(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_generated_key_is_private_and_readable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pair.key");
        generate_key(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(read_key(&path).is_ok());
        assert_eq!(
            generate_key(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pair.key");
        generate_key(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read_key(&path).unwrap_err().contains("chmod 600"));
    }

    #[test]
    fn a_bad_key_is_refused_without_being_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pair.key");
        generate_key(&path).unwrap();
        fs::write(&path, "deadbeef").unwrap();
        let message = read_key(&path).unwrap_err();
        assert!(
            message.contains("32 hexadecimal digits") && !message.contains("deadbeef"),
            "{message}"
        );
    }
}

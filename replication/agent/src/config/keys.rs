use hawser_io::key_file;
use hawser_wire::Key;
use std::io;
use std::path::Path;

/// The length of a key in bytes.
const LENGTH: usize = 16;

/// Writes a new random key to a file that must not exist yet. Only the owner can read it.
pub fn generate_key(path: &Path) -> io::Result<()> {
    key_file::generate(path, LENGTH)
}

/// Reads a key of 32 hexadecimal digits. The error never contains the file's content.
pub(super) fn read_key(path: &Path) -> Result<Key, String> {
    let key = key_file::read(path, "hawser keygen FILE")?;
    Ok(Key::from_bytes(*key))
}

/// Parses a key of 32 hexadecimal digits.
pub(crate) fn parse_key(digits: &str) -> Option<Key> {
    let mut key = [0; LENGTH];
    hex::decode_to_slice(digits, &mut key).ok()?;
    Some(Key::from_bytes(key))
}

//! Files of a recording. A pipe in their place would be waited for, and a device may never end.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a file. A directory, a pipe or a device is refused.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is a pipe or a device, and no file"));
    }
    File::open(path)
}

/// Returns all bytes of a file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the text of a file.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

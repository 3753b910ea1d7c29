//! Files that others read while they are written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file in one step, so that a reader never sees half of it. `mode` says who may read and write it, less what the
/// umask forbids. Nothing waits for the disk: after a power failure the file may be the former one, or empty.
///
/// # Errors
/// When the folder is not there or cannot be written to, or the disk is full. The file is then what it was.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&draft)?;
    file.write_all(contents)?;
    drop(file);
    fs::rename(&draft, path)
}

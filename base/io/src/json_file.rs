//! Files of JSON that a process replaces again and again, such as its status, or what it needs
//! after a restart.

use crate::failures::{Change, Failures};
use crate::file;
use hawser_units::is_shown;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The end of the name of a file that was set aside.
const DAMAGED: &str = ".damaged";

/// A file of JSON. It is replaced atomically. Unless it is [durable](Self::durable), it is not synced
/// to the disk: after a power failure it is the previous one, or cannot be read.
#[derive(Debug, Clone)]
pub struct JsonFile {
    path: PathBuf,
    mode: u32,
    /// Whether line breaks and spaces are left out.
    is_compact: bool,
    /// Whether a written value is on the disk before the call returns.
    is_durable: bool,
    /// Whether strings are made printable lines.
    is_status: bool,
}

/// The reason that a file of JSON cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JsonFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
    /// The content is not JSON of the expected form.
    #[error("{} is not valid: {error}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        error: serde_json::Error,
    },
    /// The file or its folder cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
}

impl JsonFile {
    /// Returns the file at `path`. `mode` is its permissions when it is written, restricted by the
    /// umask.
    pub fn at(path: PathBuf, mode: u32) -> Self {
        JsonFile {
            path,
            mode,
            is_compact: false,
            is_durable: false,
            is_status: false,
        }
    }

    /// Returns the file at `path` with the status of a program, for everyone to read. It may have text of others:
    /// strings are made printable lines when they are written, and when they are read.
    pub fn status(path: PathBuf) -> Self {
        JsonFile {
            is_status: true,
            ..JsonFile::at(path, 0o666)
        }
    }

    /// Makes [`write`](Self::write) leave out the line breaks and spaces that help people to read
    /// the file.
    pub fn compact(self) -> Self {
        JsonFile {
            is_compact: true,
            ..self
        }
    }

    /// Makes [`write`](Self::write) wait until the value is on the disk. After a power failure the
    /// file is then the previous or the new one.
    pub fn durable(self) -> Self {
        JsonFile {
            is_durable: true,
            ..self
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file. Returns none if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be read, or its content is not the JSON of a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<Option<T>, JsonFileError> {
        let path = self.path.clone();
        match fs::read(&self.path) {
            Ok(text) if self.is_status => {
                serde_json::from_str(&with_lines(&String::from_utf8_lossy(&text)))
                    .map(Some)
                    .map_err(|error| JsonFileError::Syntax { path, error })
            }
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| JsonFileError::Syntax { path, error }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(JsonFileError::Read { path, error }),
        }
    }

    /// As [`read`](Self::read), for a file without which a program can start: one that is not valid,
    /// as after a power failure, counts as missing. It is renamed, with `.damaged` at the end of its
    /// name. This is logged, and added to `damaged` for the status.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read_or_set_aside<T: DeserializeOwned>(
        &self,
        damaged: &mut Vec<String>,
    ) -> Result<Option<T>, JsonFileError> {
        let error = match self.read() {
            Err(error @ JsonFileError::Syntax { .. }) => error,
            read => return read,
        };
        let aside = file::with_suffix(&self.path, DAMAGED);
        let what = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("{error}; it is not used, and is now {}", aside.display()),
            Err(rename) => format!("{error}; it is not used, and cannot be renamed: {rename}"),
        };
        tracing::warn!("{what}");
        damaged.push(what);
        Ok(None)
    }

    /// Replaces the file, whose folder is created if it is missing.
    ///
    /// # Errors
    /// If the folder or the file cannot be written. The file is then unchanged.
    pub fn write<T: Serialize>(&self, value: &T) -> Result<(), JsonFileError> {
        self.replace(value).map_err(|error| JsonFileError::Write {
            path: self.path.clone(),
            error,
        })
    }

    fn replace<T: Serialize>(&self, value: &T) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            file::create_folder(folder, 0o777)?;
        }
        let text = if self.is_compact {
            serde_json::to_string(value)
        } else {
            serde_json::to_string_pretty(value)
        };
        let text = text.map(|text| match self.is_status {
            true => with_lines(&text),
            false => text,
        });
        let replace = match self.is_durable {
            true => file::replace_durably,
            false => file::replace,
        };
        replace(&self.path, text?.as_bytes(), self.mode)
    }
}

/// Returns JSON in which each string is one printable line: what is not shown as it is becomes its escape sequence.
fn with_lines(json: &str) -> String {
    let mut lines = String::with_capacity(json.len());
    let mut chars = json.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                let escaped = chars.next();
                let is_text = matches!(escaped, Some('"' | '\\' | '/'));
                lines.push_str(if is_text { "\\" } else { "\\\\" });
                lines.extend(escaped);
            }
            // Between strings.
            '\n' => lines.push(char),
            _ if is_shown(char) => lines.push(char),
            _ => {
                lines.push('\\');
                lines.extend(char.escape_unicode());
            }
        }
    }
    lines
}

/// The status of a program: a file that is written again and again, for everyone to read.
#[derive(Debug)]
pub struct StatusFile {
    file: JsonFile,
    failures: Failures,
}

impl StatusFile {
    /// Returns the file at `path`.
    pub fn at(path: PathBuf) -> Self {
        StatusFile {
            file: JsonFile::status(path),
            failures: Failures::default(),
        }
    }

    /// Replaces the file. A failure, such as a full disk, is logged once.
    pub fn write<T: Serialize>(&mut self, status: &T) {
        match self.failures.record(self.file.write(status)) {
            Some(Change::Failed(error)) => {
                tracing::error!("the status file is out of date from now on: {error}");
            }
            Some(Change::Recovered) => {
                let path = self.file.path().display();
                tracing::info!("the status file {path} is written again");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_written_value_is_read_and_has_the_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let file = JsonFile::at(directory.path().join("made/state.json"), 0o600);
        assert_eq!(file.read::<u8>().unwrap(), None);
        file.write(&7).unwrap();
        assert_eq!(file.read().unwrap(), Some(7));
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn strings_of_a_status_are_printable_lines() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = ["a\nb \u{1b}[2J", "\u{9b}m\u{202e}", "it's \"quoted\" \\n é"];
        let shown = ["a\\nb \\u001b[2J", "\\u{9b}m\\u{202e}", foreign[2]];
        let file = JsonFile::status(directory.path().join("status.json"));
        file.write(&foreign).unwrap();
        let written: Vec<String> = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
        assert_eq!(written, shown);
        // As another program, or an earlier version, has written it.
        fs::write(file.path(), serde_json::to_string(&foreign).unwrap()).unwrap();
        assert_eq!(file.read::<Vec<String>>().unwrap().unwrap(), shown);
    }

    #[test]
    fn a_compact_file_has_no_line_breaks() {
        let directory = tempfile::tempdir().unwrap();
        let file = JsonFile::at(directory.path().join("state.json"), 0o600);
        file.write(&[7]).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "[\n  7\n]");
        file.clone().compact().write(&[7]).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "[7]");
    }

    #[test]
    fn other_contents_are_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = JsonFile::at(directory.path().join("state.json"), 0o600);
        for useless in ["", "{", "-1"] {
            fs::write(file.path(), useless).unwrap();
            let error = file.read::<u8>().unwrap_err().to_string();
            assert!(error.contains("state.json"), "{error}");
        }
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_counts_as_missing() {
        let directory = tempfile::tempdir().unwrap();
        let file = JsonFile::at(directory.path().join("state.json"), 0o600).durable();
        let mut damaged = Vec::new();
        let mut read = || file.read_or_set_aside::<u8>(&mut damaged).unwrap();
        assert_eq!(read(), None);
        file.write(&7).unwrap();
        assert_eq!(read(), Some(7));
        for useless in ["", "\0\0", "-1"] {
            fs::write(file.path(), useless).unwrap();
            assert_eq!((read(), read()), (None, None));
            let aside = directory.path().join("state.json.damaged");
            assert_eq!(fs::read_to_string(aside).unwrap(), useless);
        }
        assert_eq!(damaged.len(), 3, "once for each");
        assert!(damaged[0].contains("state.json.damaged"), "{damaged:?}");
    }

    #[test]
    fn a_file_that_cannot_be_replaced_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = JsonFile::at(directory.path().join("state.json"), 0o600);
        fs::create_dir(file.path()).unwrap();
        let error = file.write(&7).unwrap_err().to_string();
        assert!(error.contains("state.json"), "{error}");
    }
}

//! TOML configuration files. Errors name the line and the valid values.

use crate::file::read_text;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The reason that a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error from the system.
        source: std::io::Error,
    },
    /// The text does not have the expected form; the message shows the line, the key and what is
    /// expected.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The position and the error.
        source: Box<toml::de::Error>,
    },
    /// The text is well-formed, but a value is invalid.
    #[error("{}, line {line}: {message}", path.display())]
    Meaning {
        /// The file.
        path: PathBuf,
        /// The line, counted from one.
        line: usize,
        /// The problem and the valid values.
        message: String,
    },
}

/// The text of a file, with its path for error messages.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    path: &'a Path,
    text: String,
}

impl<'a> Source<'a> {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn read(path: &'a Path) -> Result<Self, ConfigError> {
        let text = read_text(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Ok(Source { path, text })
    }

    /// Creates a source from a text, with `path` for error messages.
    pub fn of(path: &'a Path, text: &str) -> Self {
        Source {
            path,
            text: text.to_owned(),
        }
    }

    /// Parses the text.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`].
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|source| ConfigError::Syntax {
            path: self.path.to_owned(),
            source: Box::new(source),
        })
    }

    /// Returns the folder of the file, which paths in it are relative to.
    pub fn directory(&self) -> &'a Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Checks the name of a node, which is also used as the name of a folder.
    ///
    /// # Errors
    /// [`ConfigError::Meaning`] if `name`, a part of `at`, contains anything but letters, digits,
    /// dashes and underscores.
    pub fn check_name<T>(&self, at: &Spanned<T>, name: &str) -> Result<(), ConfigError> {
        let is_allowed =
            |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        match !name.is_empty() && name.chars().all(is_allowed) {
            true => Ok(()),
            false => Err(self.wrong(
                at,
                "name must consist of letters, digits, dashes and underscores",
            )),
        }
    }

    /// Returns the error that the entry `at` is invalid.
    pub fn wrong<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> ConfigError {
        let before = self.text.get(..at.span().start).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        ConfigError::Meaning {
            path: self.path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

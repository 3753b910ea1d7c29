//! Configuration files: TOML, read once, and refused with the line and what would be right.

use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not what is expected; the message shows line, key and what would be right.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// The text is well-formed and does not make sense.
    #[error("{}, line {line}: {message}", path.display())]
    Meaning {
        /// Which file.
        path: PathBuf,
        /// Where, counted from one.
        line: usize,
        /// What is wrong and what would be right.
        message: String,
    },
}

/// The text of a file, and how its errors are told.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    path: &'a Path,
    text: String,
}

impl<'a> Source<'a> {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn read(path: &'a Path) -> Result<Self, ConfigError> {
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Ok(Source { path, text })
    }

    /// A text that is called `path`.
    pub fn of(path: &'a Path, text: &str) -> Self {
        Source {
            path,
            text: text.to_owned(),
        }
    }

    /// What the text says.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`].
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|source| ConfigError::Syntax {
            path: self.path.to_owned(),
            source: Box::new(source),
        })
    }

    /// The folder of the file, which paths in it are relative to.
    pub fn directory(&self) -> &'a Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// What nodes are called is also the name of a folder.
    ///
    /// # Errors
    /// [`ConfigError::Meaning`] when `name`, a part of `at`, is not made of letters, digits and dashes.
    pub fn check_name<T>(&self, at: &Spanned<T>, name: &str) -> Result<(), ConfigError> {
        let is_allowed =
            |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        match !name.is_empty() && name.chars().all(is_allowed) {
            true => Ok(()),
            false => Err(self.wrong(at, "name is made of letters, digits and dashes")),
        }
    }

    /// The entry that `at` is makes no sense.
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

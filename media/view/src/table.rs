//! Tables as files.

use anyhow::Context;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A CSV file.
pub(crate) struct Table {
    path: PathBuf,
    csv: csv::Writer<File>,
}

impl Table {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let csv = hawser_io::file::create(path)
            .map(csv::Writer::from_writer)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Table {
            path: path.to_owned(),
            csv,
        })
    }

    pub(crate) fn write(&mut self, row: impl Serialize) -> anyhow::Result<()> {
        self.csv
            .serialize(row)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.csv
            .flush()
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

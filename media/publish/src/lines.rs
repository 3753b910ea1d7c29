use anyhow::Context;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A CSV file, to which each line is written at once.
pub(crate) struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Lines {
    /// Creates a file with a line of headings.
    pub(crate) fn create(path: &Path, headings: &str) -> anyhow::Result<Self> {
        let create = || {
            let mut file = BufWriter::new(hawser_io::file::create(path)?);
            writeln!(file, "{headings}")?;
            file.flush()?;
            io::Result::Ok(file)
        };
        let file = create().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Lines {
            path: path.to_owned(),
            file,
        })
    }

    pub(crate) fn write(&mut self, line: Arguments<'_>) -> anyhow::Result<()> {
        writeln!(self.file, "{line}")
            .and_then(|()| self.file.flush())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

//! Saves received frames as a recording that `hawser publish` plays again.

use anyhow::{Context, bail};
use hawser_cloud::{Cloud, ply};
use hawser_io::file;
use std::fs;
use std::path::{Path, PathBuf};

/// The description of the recording, beside its frames.
const DESCRIPTION: &str = "recording.toml";

/// A directory of PLY files, one for each frame, with a description.
pub(crate) struct SavedFrames {
    directory: PathBuf,
    frames: u64,
    first_ns: u64,
    last_ns: u64,
}

impl SavedFrames {
    /// Creates the directory, which may exist.
    ///
    /// # Errors
    /// If it cannot be created, or there is a recording in it: the frames of both would be mixed.
    pub(crate) fn create(directory: &Path) -> anyhow::Result<Self> {
        file::create_folder(directory, 0o777)
            .with_context(|| format!("cannot create the directory {}", directory.display()))?;
        let entries = fs::read_dir(directory)
            .with_context(|| format!("cannot read the directory {}", directory.display()))?;
        let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        if let Some(name) = names.find(|name| is_of_a_recording(Path::new(name))) {
            bail!(
                "{} has {} of an earlier recording: name another directory, or remove what is in it",
                directory.display(),
                name.display()
            );
        }
        Ok(SavedFrames {
            directory: directory.to_owned(),
            frames: 0,
            first_ns: u64::MAX,
            last_ns: 0,
        })
    }

    /// Writes a frame that was captured so many nanoseconds after 1970.
    pub(crate) fn save(&mut self, captured_ns: u64, cloud: &Cloud) -> anyhow::Result<()> {
        let path = self.directory.join(format!("frame-{captured_ns:019}.ply"));
        write(&path, &ply::write(cloud))?;
        self.frames += 1;
        self.first_ns = self.first_ns.min(captured_ns);
        self.last_ns = self.last_ns.max(captured_ns);
        // A viewer that is killed leaves a recording, too.
        match self.frames {
            2 => self.describe(),
            _ => Ok(()),
        }
    }

    /// Writes the description, with the frames per second of the whole recording.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        self.describe()
    }

    fn describe(&self) -> anyhow::Result<()> {
        let seconds = self.last_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        if self.frames < 2 || seconds == 0.0 {
            return Ok(());
        }
        let fps = (self.frames - 1) as f64 / seconds;
        let unit_mm = ply::MILLIMETRES_PER_METRE;
        let text = format!(
            "fps = {fps:.3}\n\n[ply-sequence]\ndirectory = \".\"\nunit_mm = {unit_mm:.1}\n"
        );
        write(&self.directory.join(DESCRIPTION), text.as_bytes())
    }
}

/// Returns whether a file is one that is written, or would be played as a frame.
fn is_of_a_recording(name: &Path) -> bool {
    let extension = name.extension();
    name == Path::new(DESCRIPTION) || extension.is_some_and(|e| e.eq_ignore_ascii_case("ply"))
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    // Whole or not at all: a partial frame would corrupt the recording.
    file::replace(path, bytes, 0o666).with_context(|| format!("cannot save {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_a_recording_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["notes.txt", "recording.toml", "frame-7.ply"] {
            let path = directory.path().join(name);
            fs::write(&path, "").unwrap();
            let refused = SavedFrames::create(directory.path()).err();
            let refused = refused.map(|error| error.to_string());
            assert_eq!(refused.is_some(), name != "notes.txt", "{refused:?}");
            assert!(refused.is_none_or(|error| error.contains(name)));
            fs::remove_file(&path).unwrap();
        }
    }
}

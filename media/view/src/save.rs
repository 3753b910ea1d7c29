//! Saves received frames as a recording that `hawser publish` plays again.

use crate::sound::{SavedSound, SoundPacket};
use anyhow::{Context, bail};
use hawser_cloud::{Cloud, ply};
use hawser_io::file;
use hawser_units::Instant;
use std::fs;
use std::path::{Path, PathBuf};

/// The description of the recording, beside its frames.
const DESCRIPTION: &str = "recording.toml";

/// The sound, likewise.
const SOUND: &str = "sound.opus";

/// A directory of PLY files, one for each frame, with a description and the sound, if there is some.
pub(crate) struct SavedFrames {
    directory: PathBuf,
    frames: u64,
    first_ns: u64,
    last_ns: u64,
    sound: SavedSound,
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
            sound: SavedSound::new(directory.join(SOUND)),
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
            1 => self.sound.begin(Instant::from_nanos(captured_ns)),
            2 => self.describe(),
            _ => Ok(()),
        }
    }

    /// Writes a packet of sound. The file begins with the first frame.
    pub(crate) fn save_sound(&mut self, packet: SoundPacket) -> anyhow::Result<()> {
        self.sound.add(packet)
    }

    /// Writes the description, with the frames per second of the whole recording, and completes the sound.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.describe()?;
        self.sound.finish()
    }

    fn describe(&self) -> anyhow::Result<()> {
        let seconds = self.last_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        if self.frames < 2 || seconds == 0.0 {
            return Ok(());
        }
        let fps = (self.frames - 1) as f64 / seconds;
        let unit_mm = ply::MILLIMETRES_PER_METRE;
        let mut text = format!(
            "fps = {fps:.3}\n\n[ply-sequence]\ndirectory = \".\"\nunit_mm = {unit_mm:.1}\n"
        );
        if self.sound.has_begun() {
            text += &format!("\n[audio]\nfile = \"{SOUND}\"\n");
        }
        write(&self.directory.join(DESCRIPTION), text.as_bytes())
    }
}

/// Returns whether a file is one that is written, or would be played as a frame.
fn is_of_a_recording(name: &Path) -> bool {
    let extension = name.extension();
    let is_ours = [DESCRIPTION, SOUND].contains(&name.to_str().unwrap_or_default());
    is_ours || extension.is_some_and(|e| e.eq_ignore_ascii_case("ply"))
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
        for name in ["notes.txt", "recording.toml", "frame-7.ply", "sound.opus"] {
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

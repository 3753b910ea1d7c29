//! The files that are made of a viewer's frames.

use crate::failure::attempt;
use crate::picture::{Drawn, PictureThread, Pictures};
use crate::save::SavedFrames;
use crate::sound::{SavedSound, SoundPacket};
use crate::table::Table;
use hawser_cloud::{Cloud, Pose};
use hawser_io::file;
use hawser_units::Instant;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The files that are made of frames. One that cannot be written any more, because the disk is full, ends
/// alone: the other files and watching continue.
pub(crate) struct Files {
    timeline: Option<Table>,
    save: Option<SavedFrames>,
    pictures: Option<PictureThread>,
    /// The video with its sound, which becomes a part of it at the end.
    video: Option<(PathBuf, SavedSound)>,
    errors: Vec<anyhow::Error>,
}

impl Files {
    /// Creates those that are requested.
    pub(crate) fn create(
        timeline: Option<&Path>,
        save: Option<&Path>,
        pictures: &Pictures,
    ) -> anyhow::Result<Self> {
        let video = pictures.video.clone().map(|path| {
            let sound = file::with_suffix(&path, ".opus");
            (path, SavedSound::new(sound))
        });
        Ok(Files {
            video,
            timeline: timeline.map(Table::create).transpose()?,
            save: save.map(SavedFrames::create).transpose()?,
            pictures: PictureThread::start(pictures)?,
            errors: Vec::new(),
        })
    }

    /// Takes a frame with its line of the timeline, and the viewer's pose if it changes over time.
    pub(crate) fn record(
        &mut self,
        row: impl Serialize,
        captured_ns: u64,
        cloud: Cloud,
        pose: Option<Pose>,
    ) {
        let errors = &mut self.errors;
        attempt(&mut self.timeline, "--timeline", errors, |timeline| {
            timeline.write(row)?;
            timeline.flush()
        });
        attempt(&mut self.save, "--save", errors, |save| {
            save.save(captured_ns, &cloud)
        });
        attempt(
            &mut self.video,
            "the sound of --render",
            errors,
            |(_, sound)| sound.begin(Instant::from_nanos(captured_ns)),
        );
        if let Some(pictures) = &mut self.pictures {
            pictures.show(captured_ns, cloud, pose);
        }
    }

    /// Takes a packet of sound.
    pub(crate) fn record_sound(&mut self, packet: SoundPacket) {
        let errors = &mut self.errors;
        attempt(
            &mut self.video,
            "the sound of --render",
            errors,
            |(_, sound)| sound.add(packet.clone()),
        );
        attempt(&mut self.save, "--save", errors, |save| {
            save.save_sound(packet)
        });
    }

    /// Completes the files. Also returns the errors that ended some of them.
    pub(crate) fn finish(mut self) -> (Option<Drawn>, Vec<anyhow::Error>) {
        let errors = &mut self.errors;
        attempt(&mut self.timeline, "--timeline", errors, Table::flush);
        attempt(&mut self.save, "--save", errors, |save| save.finish());
        let pictures = self.pictures.map(PictureThread::finish);
        let (drawn, of_pictures) = pictures.unzip();
        self.errors.extend(of_pictures.into_iter().flatten());
        let errors = &mut self.errors;
        attempt(
            &mut self.video,
            "the sound of --render",
            errors,
            |(path, sound)| sound.add_to(path),
        );
        (drawn, self.errors)
    }
}

//! The files that are made of a viewer's frames.

use crate::failure::attempt;
use crate::picture::{Drawn, PictureThread, Pictures};
use crate::save::SavedFrames;
use crate::table::Table;
use hawser_cloud::{Cloud, Pose};
use serde::Serialize;
use std::path::Path;

/// The files that are made of frames. One that cannot be written any more, because the disk is full, ends
/// alone: the other files and watching continue.
pub(crate) struct Files {
    timeline: Option<Table>,
    save: Option<SavedFrames>,
    pictures: Option<PictureThread>,
    errors: Vec<anyhow::Error>,
}

impl Files {
    /// Creates those that are requested.
    pub(crate) fn create(
        timeline: Option<&Path>,
        save: Option<&Path>,
        pictures: &Pictures,
    ) -> anyhow::Result<Self> {
        Ok(Files {
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
        if let Some(pictures) = &mut self.pictures {
            pictures.show(captured_ns, cloud, pose);
        }
    }

    /// Completes the files. Also returns the errors that ended some of them.
    pub(crate) fn finish(mut self) -> (Option<Drawn>, Vec<anyhow::Error>) {
        let errors = &mut self.errors;
        attempt(&mut self.timeline, "--timeline", errors, Table::flush);
        attempt(&mut self.save, "--save", errors, |save| save.finish());
        let pictures = self.pictures.map(PictureThread::finish);
        let (drawn, of_pictures) = pictures.unzip();
        self.errors.extend(of_pictures.into_iter().flatten());
        (drawn, self.errors)
    }
}

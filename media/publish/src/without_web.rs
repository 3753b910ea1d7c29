//! Replaces the page in a program that is built without Media over QUIC.

use crate::options::WebConfig;
use anyhow::{Result, bail};
use hawser_keys::Secret;
use hawser_objects::Publication;
use hawser_units::Instant;
use std::time::Duration;

/// Does not exist in this program.
pub(crate) enum Web {}

impl Web {
    pub(crate) const POLL: Duration = Duration::MAX;

    pub(crate) fn open(_: &WebConfig) -> Result<Self> {
        bail!("--web: this program was built without MoQ")
    }

    pub(crate) fn print_link(&self, _: &Secret) -> Result<()> {
        match *self {}
    }

    pub(crate) fn take(&mut self, _: Instant, _: &mut Publication) {
        match *self {}
    }

    pub(crate) fn announce(&mut self, _: &Publication) {
        match *self {}
    }

    pub(crate) fn is_watched(&self) -> bool {
        match *self {}
    }
}

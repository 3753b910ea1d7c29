//! Stands in for Media over QUIC in a program without it, which refuses a configuration that asks for it.

use crate::config::BroadcastConfig;
use crate::status::MoqStatus;
use anyhow::Result;
use hawser_audience::Broadcast;

/// There is none.
pub(crate) enum Moq {}

impl Moq {
    pub(crate) fn open(_: &BroadcastConfig) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn take(&mut self, _: &Broadcast) {
        match *self {}
    }

    pub(crate) fn announce(&mut self, _: &Broadcast) {
        match *self {}
    }

    pub(crate) fn status(&self) -> MoqStatus {
        match *self {}
    }
}

//! Replaces Media over QUIC in a program that is built without it. Its configuration has no MoQ.

use crate::config::BroadcastConfig;
use crate::status::{MoqSourceStatus, MoqStatus};
use anyhow::{Result, bail};
use hawser_audience::Broadcast;
use hawser_objects::{AccessSecret, Seed};
use std::net::SocketAddr;

/// Does not exist in this program.
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

pub(crate) fn serve_page<'a>(_: SocketAddr, _: impl Iterator<Item = &'a Moq>) -> Result<()> {
    bail!("web: this program was built without MoQ")
}

/// Does not exist in this program.
pub(crate) enum MoqIngest {}

impl MoqIngest {
    pub(crate) fn open(
        _: &BroadcastConfig,
        _: AccessSecret,
        _: [u8; 16],
        _: Seed,
    ) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        match *self {}
    }

    pub(crate) fn set_access(&self, _: AccessSecret) {
        match *self {}
    }

    pub(crate) fn status(&self) -> MoqSourceStatus {
        match *self {}
    }
}

//! A broadcast and its secret, which the controller may replace.

use crate::Config;
use anyhow::{Context, anyhow, ensure};
use hawser_congestion::{Prague, PragueConfig};
use hawser_io::clock::unix_ms;
use hawser_keys::{Keyring, Secret, Serving};
use hawser_objects::{FlowConfig, Publication, PublicationConfig, Seed, TrackSecret, TrackTiming};
use hawser_packets::session::{Announcement, MAX_TRACKS, OPUS, Track};
use hawser_recording::PACKET;
use hawser_units::Instant;
use std::net::SocketAddr;

/// The parts of a broadcast that do not depend on its secret.
pub(crate) struct Broadcast {
    config: Config,
    tracks: Vec<Track>,
    keyring: Keyring,
    /// The address that others are told.
    address: SocketAddr,
    /// The number of viewers that the controller knows; `None` before it knows any.
    announced: Option<usize>,
    /// Whether the socket accepts departure times.
    departure_times: bool,
}

impl Broadcast {
    pub(crate) fn new(
        config: &Config,
        tracks: Vec<Track>,
        keyring: Keyring,
        address: SocketAddr,
        departure_times: bool,
    ) -> Self {
        Broadcast {
            address: config.announce.unwrap_or(address),
            announced: None,
            config: config.clone(),
            tracks,
            keyring,
            departure_times,
        }
    }

    /// Returns whether there is a track of sound.
    pub(crate) fn has_sound(&self) -> bool {
        self.tracks.iter().any(Track::is_sound)
    }

    /// Tells the controller, if there is one, where the broadcast is served, and to how many.
    pub(crate) fn announce(&mut self, viewers: usize) {
        if self.announced.replace(viewers) != Some(viewers) {
            let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            self.keyring.serve(Some(Serving {
                address: self.address,
                viewers: count(viewers),
                max_viewers: count(self.config.viewers),
            }));
        }
    }

    /// Returns the publication under a new secret, and this, if the controller has replaced the secret.
    ///
    /// # Errors
    /// If this node may no longer publish.
    pub(crate) fn poll_replaced(&self) -> anyhow::Result<Option<(Publication, Secret)>> {
        let Some(secret) = self.keyring.poll()? else {
            return Ok(None);
        };
        Ok(Some((self.publication(&secret)?, secret)))
    }

    /// Returns a publication without viewers.
    pub(crate) fn publication(&self, secret: &Secret) -> anyhow::Result<Publication> {
        let config = &self.config;
        let mut random = [0; 64];
        getrandom::fill(&mut random).context("the system has no random numbers")?;
        let (incarnation, rest) = random.split_first_chunk().expect("64 bytes");
        let (hop_salt, rest) = rest.split_first_chunk().expect("48 bytes");
        let settings = PublicationConfig {
            announcement: Announcement {
                incarnation: *incarnation,
                started_unix_millis: unix_ms(),
                tracks: self.tracks.clone(),
            },
            lifetime: config.lifetime,
            flow: FlowConfig {
                departure_times: self.departure_times,
                ..config.flow()
            },
            viewers: config.viewers,
            hop_salt: *hop_salt,
            seed: Seed::new(*rest.first_chunk().expect("32 bytes")),
        };
        let prague = PragueConfig {
            bounds: config.bounds,
            feedback_interval: config.flow().sender.report_interval,
            ..PragueConfig::default()
        };
        let control = move |now: Instant| Box::new(Prague::new(prague, now)) as _;
        let secret = TrackSecret::new(**secret);
        Publication::new(settings, &secret, Box::new(control))
            .map_err(|error| anyhow!("the tracks cannot be announced: {error}"))
    }
}

/// Returns the timing of all tracks.
pub(crate) fn timing(config: &Config) -> TrackTiming {
    TrackTiming {
        lifetime: config.lifetime,
        frames_per_1000_s: (config.fps * 1000.0).round() as u32,
    }
}

/// Adds the track of sound.
///
/// # Errors
/// If there are as many tracks as there may be.
pub(crate) fn add_sound(tracks: &mut Vec<Track>, config: &Config) -> anyhow::Result<()> {
    ensure!(
        tracks.len() < MAX_TRACKS,
        "with sound there are more than {MAX_TRACKS} tracks: publish fewer cameras, or one encoding of each"
    );
    let timing = TrackTiming {
        lifetime: config.lifetime,
        frames_per_1000_s: 1_000_000 / PACKET.as_millis() as u32,
    };
    tracks.push(Track {
        alias: tracks.len() as u32,
        codec: OPUS,
        layers: 1,
        name: "sound".to_owned(),
        parameters: timing.emit().to_vec(),
    });
    Ok(())
}

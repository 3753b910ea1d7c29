//! The secret of a broadcast, for publishers and viewers: from a file, or from the controller, which
//! says who may have it and replaces it, and who serves the broadcast.

mod announced;
mod follow;
mod origin;
mod probes;
mod sources;

use clap::ArgGroup;
use follow::Follower;
use hawser_client::Controller;
use hawser_io::key_file;
use hawser_model::Name;
use hawser_model::track::TrackSource;
use hawser_objects::AccessSecret;
use std::path::PathBuf;
use zeroize::Zeroizing;

pub use announced::{parse_announced, reachable};
pub use hawser_model::track::{Serving, TrackRole};
pub use origin::Origin;
pub use sources::{ATTEMPT, Contact, NO_MEDIA};

/// The secret of a broadcast, or what a relay needs of it.
pub type Secret = Zeroizing<[u8; 32]>;

/// Options that say where the secret of a broadcast comes from.
#[derive(Debug, Clone, clap::Args)]
#[command(group = ArgGroup::new("secret").args(["key", "track"]).required(true))]
pub struct KeyArgs {
    /// File with the secret of the broadcast, the same for the publisher and its viewers; `hawser
    /// keygen --media FILE` makes one
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Track of the controller whose secret is used, instead of --key
    #[arg(long, value_name = "NAME", requires_all = ["node", "controller"])]
    track: Option<Name>,
    /// URL of a controller that knows the track; may be repeated
    #[arg(long, value_name = "https://HOST:PORT", requires = "track")]
    controller: Vec<Controller>,
    /// Directory with the certificate of this node, made by `hawser enrol` or by the agent
    #[arg(long, value_name = "DIRECTORY", requires = "track")]
    node: Option<PathBuf>,
}

impl KeyArgs {
    /// Returns the source.
    ///
    /// # Panics
    /// If the options are not those of a command line.
    pub fn source(&self) -> KeySource {
        match (&self.key, &self.track, &self.node) {
            (Some(file), ..) => KeySource::File(file.clone()),
            (None, Some(track), Some(node)) => KeySource::Controller(ControlledTrack {
                track: track.clone(),
                controllers: self.controller.clone(),
                node: node.clone(),
            }),
            _ => unreachable!("--key or --track is required, and --track requires --node"),
        }
    }
}

/// Where the secret of a broadcast comes from.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// A file, which is read once.
    File(PathBuf),
    /// A controller.
    Controller(ControlledTrack),
}

impl From<PathBuf> for KeySource {
    fn from(file: PathBuf) -> Self {
        KeySource::File(file)
    }
}

/// A track of a controller, and the node that asks for its secret.
#[derive(Debug, Clone)]
pub struct ControlledTrack {
    /// The track.
    pub track: Name,
    /// The controllers, of which the first that answers is asked.
    pub controllers: Vec<Controller>,
    /// The directory with the node's certificate.
    pub node: PathBuf,
}

/// The reason why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is no key file.
    #[error("{0}")]
    File(String),
    /// The controller cannot be asked, or refuses the request.
    #[error("cannot get the secret of the track {track}: {source}")]
    Controller {
        /// The track.
        track: Name,
        /// The cause.
        source: hawser_client::Error,
    },
    /// The node may watch the track, but not publish it.
    #[error(
        "{node} may watch the track {track}, but not publish it: an operator allows it with \
         `hawser ctl track set {track} --add-writer {node}`"
    )]
    NoWriter {
        /// The track.
        track: Name,
        /// The node.
        node: Name,
    },
    /// The node may relay the track, but not watch it.
    #[error(
        "{node} may relay the track {track}, but not watch it: an operator allows it with \
         `hawser ctl track set {track} --add-reader {node}`"
    )]
    OnlyRelay {
        /// The track.
        track: Name,
        /// The node.
        node: Name,
    },
    /// The controller's answer is no secret.
    #[error("the controller's secret of the track {0} does not have 64 hexadecimal digits")]
    NoSecret(Name),
    /// The thread that asks cannot be started.
    #[error("cannot follow the secret of a track: {0}")]
    Thread(#[from] std::io::Error),
}

/// The secret of a broadcast, and what the controller says of it.
#[derive(Debug)]
pub struct Keyring {
    follower: Option<Follower>,
}

impl Keyring {
    /// Gets the secret for a publisher ([`TrackRole::Writer`]) or a viewer, or for a relay what it needs
    /// of it. A secret of a controller is followed from then on.
    ///
    /// # Errors
    /// If the file is not valid, no controller answers, or the node has another role.
    pub fn open(source: &KeySource, role: TrackRole) -> Result<(Self, Secret), Error> {
        match source {
            KeySource::File(file) => {
                let read = match role {
                    TrackRole::Writer | TrackRole::Reader => key_file::read_media(file),
                    TrackRole::Relay => key_file::read_relay(file),
                };
                let secret = read.map_err(Error::File)?;
                Ok((Keyring { follower: None }, secret))
            }
            KeySource::Controller(track) => {
                let (follower, secret) = Follower::start(track.clone(), role)?;
                let follower = Some(follower);
                Ok((Keyring { follower }, secret))
            }
        }
    }

    /// Returns a secret that has replaced the one before.
    ///
    /// # Errors
    /// If the controller no longer lets the node have it. While no controller answers, the secret stays
    /// in force.
    pub fn poll(&self) -> Result<Option<Secret>, Error> {
        self.follower.as_ref().map_or(Ok(None), Follower::poll)
    }

    /// Says where the broadcast is served by this program; `None` while it is not. The controller tells
    /// others.
    pub fn serve(&self, serving: Option<Serving>) {
        if let Some(follower) = &self.follower {
            follower.serve(serving);
        }
    }

    /// Returns where the controller says that the broadcast is served, the best first, if it says other than
    /// before.
    pub(crate) fn poll_sources(&self) -> Option<Vec<TrackSource>> {
        self.follower.as_ref().and_then(Follower::poll_sources)
    }

    /// Returns what opens sessions, if the controller says it.
    pub(crate) fn access(&self) -> Option<AccessSecret> {
        self.follower.as_ref().and_then(Follower::access)
    }

    /// Asks the controller soon, because the other end seems to have another secret, or is not there.
    pub fn ask_now(&self) {
        if let Some(follower) = &self.follower {
            follower.ask_now();
        }
    }
}

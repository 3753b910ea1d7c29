use crate::outdated::unless_changed;
use crate::output::{Output, is_wanted};
use anyhow::{Result, ensure};
use hawser_client::{OperatorClient, Tag, Tagged};
use hawser_model::Name;
use hawser_model::track::{Track, TrackSource};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List all tracks
    #[command(after_help = "Example: hawser ctl track list --tenant acme")]
    List {
        /// Only tracks of this tenant
        #[arg(long)]
        tenant: Option<Name>,
        /// Only tracks that this node may publish, watch or relay
        #[arg(long)]
        node: Option<Name>,
    },
    /// Show one track
    #[command(after_help = "Example: hawser ctl track show stage")]
    Show {
        /// Name of the track
        track: Name,
    },
    /// Show who serves a track at present, where, and to how many
    #[command(after_help = "Example: hawser ctl track describe stage")]
    Describe {
        /// Name of the track
        track: Name,
    },
    /// Create a track with a new secret, which its writers and readers get from the controller, and its
    /// relays what they need of it
    #[command(
        after_help = "Example: hawser ctl track create stage --tenant acme --writer studio --reader home --relay pop"
    )]
    Create {
        /// Name of the track
        track: Name,
        /// Tenant that the track and its nodes belong to
        #[arg(long)]
        tenant: Name,
        /// Node that may publish, and watch; may be repeated
        #[arg(long = "writer", value_name = "NODE", required = true)]
        writers: Vec<Name>,
        /// Node that may watch; may be repeated
        #[arg(long = "reader", value_name = "NODE")]
        readers: Vec<Name>,
        /// Node that may relay to others what it cannot watch; may be repeated
        #[arg(long = "relay", value_name = "NODE")]
        relays: Vec<Name>,
    },
    /// Add and remove writers, readers and relays; the secret is replaced if a node is removed
    #[command(after_help = "Example: hawser ctl track set stage --add-reader home")]
    Set {
        /// Name of the track
        track: Name,
        #[command(flatten)]
        changes: Changes,
    },
    /// Replace the secret; sessions with the old one end within seconds
    #[command(after_help = "Example: hawser ctl track rekey stage")]
    Rekey {
        /// Name of the track
        track: Name,
    },
    /// Delete a track; its writers, readers and relays stop within seconds
    #[command(after_help = "Example: hawser ctl track delete stage")]
    Delete {
        /// Name of the track
        track: Name,
    },
}

/// The nodes to add and to remove.
#[derive(Debug, Default, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Changes {
    /// Node that may now publish, and watch; may be repeated
    #[arg(long = "add-writer", value_name = "NODE")]
    add_writers: Vec<Name>,
    /// Node that may now watch; may be repeated
    #[arg(long = "add-reader", value_name = "NODE")]
    add_readers: Vec<Name>,
    /// Node that may now relay, and not watch; may be repeated
    #[arg(long = "add-relay", value_name = "NODE")]
    add_relays: Vec<Name>,
    /// Node that may neither publish nor watch nor relay any more; may be repeated
    #[arg(long, value_name = "NODE")]
    remove: Vec<Name>,
}

impl Changes {
    /// Applies the changes. A node that is added with another role than it has changes its role.
    fn apply(&self, track: &mut Track) -> Result<()> {
        for node in &self.remove {
            ensure!(
                track.role(node).is_some(),
                "{node} is neither a writer nor a reader nor a relay of {}",
                track.name
            );
        }
        let named = || {
            let added = self.add_writers.iter().chain(&self.add_readers);
            added.chain(&self.add_relays).chain(&self.remove)
        };
        for list in [&mut track.writers, &mut track.readers, &mut track.relays] {
            list.retain(|node| named().all(|named| named != node));
        }
        track.writers.extend(self.add_writers.iter().cloned());
        track.readers.extend(self.add_readers.iter().cloned());
        track.relays.extend(self.add_relays.iter().cloned());
        Ok(())
    }
}

impl Command {
    /// Returns whether the command changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(
            self,
            Command::List { .. } | Command::Show { .. } | Command::Describe { .. }
        )
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List { tenant, node } => {
            let mut tracks = client.tracks().all().await?;
            tracks.retain(|track| {
                let is_member = node.as_ref().is_none_or(|node| track.role(node).is_some());
                is_wanted(tenant.as_ref(), &track.tenant) && is_member
            });
            output.list(&tracks, &COLUMNS, row)
        }
        Command::Show { track } => {
            let track = client.track(track).await?;
            let fields: Vec<_> = COLUMNS.into_iter().zip(row(&track)).collect();
            output.one(&track, &fields)
        }
        Command::Describe { track } => {
            let sources = client.track_sources(track).await?;
            output.list(&sources, &SOURCE_COLUMNS, source_row)
        }
        Command::Create {
            track,
            tenant,
            writers,
            readers,
            relays,
        } => {
            let track = Track {
                name: track.clone(),
                tenant: tenant.clone(),
                writers: writers.clone(),
                readers: readers.clone(),
                relays: relays.clone(),
            };
            let track = client.create_track(&track).await?;
            output.changed(&track, &format!("track {} created", track.name))
        }
        Command::Set { track, changes } => {
            let changed = change(client, track, changes).await?;
            output.changed(&changed, &format!("track {track} changed"))
        }
        Command::Rekey { track } => {
            client.rekey_track(track).await?;
            output.done(&format!("secret of the track {track} replaced"))
        }
        Command::Delete { track } => {
            client.delete_track(track).await?;
            output.done(&format!("track {track} deleted"))
        }
    }
}

async fn change(client: &OperatorClient, track: &Name, changes: &Changes) -> Result<Track> {
    let Tagged { mut value, tag } = client.tagged_track(track).await?;
    changes.apply(&mut value)?;
    replace(client, &value, &tag).await
}

/// Replaces a track unless it was changed since it was read.
pub(crate) async fn replace(client: &OperatorClient, track: &Track, tag: &Tag) -> Result<Track> {
    let replaced = client.replace_track(track, tag).await;
    unless_changed(replaced, format_args!("track {}", track.name))
}

/// The columns of a list of tracks.
const COLUMNS: [&str; 5] = ["name", "tenant", "writers", "readers", "relays"];

fn row(track: &Track) -> Vec<String> {
    let names = |nodes: &[Name]| {
        let names: Vec<&str> = nodes.iter().map(Name::as_str).collect();
        names.join(" ")
    };
    vec![
        track.name.to_string(),
        track.tenant.to_string(),
        names(&track.writers),
        names(&track.readers),
        names(&track.relays),
    ]
}

/// The columns of a list of those who serve a track.
const SOURCE_COLUMNS: [&str; 5] = ["node", "role", "address", "viewers", "max"];

fn source_row(source: &TrackSource) -> Vec<String> {
    let serving = &source.serving;
    vec![
        source.node.to_string(),
        source.role.to_string(),
        serving.address.to_string(),
        serving.viewers.to_string(),
        serving.max_viewers.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<Name> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn track() -> Track {
        Track {
            name: "stage".parse().unwrap(),
            tenant: "acme".parse().unwrap(),
            writers: names(&["car"]),
            readers: names(&["desk", "wall"]),
            relays: names(&["pop"]),
        }
    }

    #[test]
    fn nodes_are_added_removed_and_change_their_role() {
        let mut changed = track();
        let changes = Changes {
            add_writers: names(&["desk"]),
            add_readers: names(&["car", "tablet"]),
            add_relays: names(&["edge"]),
            remove: names(&["wall"]),
        };
        changes.apply(&mut changed).unwrap();
        assert_eq!(changed.writers, names(&["desk"]));
        assert_eq!(changed.readers, names(&["car", "tablet"]));
        assert_eq!(changed.relays, names(&["pop", "edge"]));
    }

    #[test]
    fn a_node_that_is_not_there_cannot_be_removed() {
        let mut changed = track();
        let changes = Changes {
            remove: names(&["dsek"]),
            ..Changes::default()
        };
        let error = changes.apply(&mut changed).unwrap_err().to_string();
        assert!(error.contains("dsek is neither"), "{error}");
        assert_eq!(changed, track());
    }
}

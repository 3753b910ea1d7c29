//! The keys of the store. Names contain no slash.

use hawser_model::Name;
use hawser_model::track::TrackRole;
use std::net::SocketAddr;

pub(crate) const FORMAT: &str = "format";
pub(crate) const INCARNATION: &str = "incarnation";
/// The greatest number of an event that was removed because there were too many.
pub(crate) const TRIMMED: &str = "events_trimmed";
/// The time for which leaders have run.
pub(crate) const RUN_TIME: &str = "run_time";
/// The settings of the leader that all controllers should have.
pub(crate) const SETTINGS: &str = "settings";
pub(crate) const AUTHORITY: &str = "authority";
pub(crate) const LEADER: &str = "leader";
pub(crate) const TENANT: &str = "tenant/";
pub(crate) const NODE: &str = "node/";
pub(crate) const REGISTRATION: &str = "registration/";
pub(crate) const ALIVE: &str = "alive/";
pub(crate) const SEEN: &str = "seen/";
pub(crate) const KEYS: &str = "keys/";
pub(crate) const HEALTH: &str = "health/";
/// `NODE/NODE`, in the order of their names: the paths between them that were discovered.
pub(crate) const PATHS: &str = "paths/";
pub(crate) const NUMBER: &str = "number/";
pub(crate) const FLOW: &str = "flow/";
pub(crate) const POLICY: &str = "policy/";
pub(crate) const TRACK: &str = "track/";
/// `TRACK/NODE/ROLE/ADDRESS`: where a program of the node serves the track, with the address as the program says it.
pub(crate) const SOURCE: &str = "source/";
pub(crate) const TOKEN: &str = "token/";
pub(crate) const TOKEN_USE: &str = "token_use/";
pub(crate) const EVENT: &str = "event/";
pub(crate) const AUDIT: &str = "audit/";
pub(crate) const OBSERVATION: &str = "observation/";
pub(crate) const TUNNEL: &str = "tunnel/";
/// The last statement of a node as a tunnel client.
pub(crate) const TUNNEL_CLIENT: &str = "tunnel_client/";
/// The settings of a node as a tunnel client.
pub(crate) const TUNNEL_SETTINGS: &str = "tunnel_settings/";
pub(crate) const INNER: &str = "inner/";
pub(crate) const USED: &str = "used/";

pub(crate) fn of(kind: &str, name: &Name) -> String {
    format!("{kind}{name}")
}

/// Returns the key that is written with each reference to the entry of that kind and name, see
/// [`crate::reference`].
pub(crate) fn used(kind: &str, name: &Name) -> String {
    format!("{USED}{kind}{name}")
}

/// Returns the key of the offset of a client's inner addresses within each prefix.
pub(crate) fn inner(number: u64) -> String {
    format!("{INNER}{number:020}")
}

/// A program of a node that serves a track: the node, how, and at which address, as the program says.
pub(crate) type Server = (Name, TrackRole, SocketAddr);

/// Returns the key of a source of a track.
pub(crate) fn source(track: &Name, (node, role, address): &Server) -> String {
    format!("{SOURCE}{track}/{node}/{role}/{address}")
}

/// Returns the track and the program in the rest of the key of a source.
pub(crate) fn split_source(rest: &str) -> Option<(Name, Server)> {
    let mut parts = rest.splitn(4, '/');
    let (track, node) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (role, address) = (parts.next()?, parts.next()?.parse().ok()?);
    let mut roles = [TrackRole::Writer, TrackRole::Relay].into_iter();
    let role = roles.find(|known| known.to_string() == role)?;
    Some((track, (node, role, address)))
}

/// Returns the key of the discovered paths between two nodes.
pub(crate) fn paths([first, second]: [&Name; 2]) -> String {
    format!("{PATHS}{first}/{second}")
}

/// Returns the two nodes in the rest of the key of discovered paths.
pub(crate) fn split_pair(rest: &str) -> Option<[Name; 2]> {
    let (first, second) = rest.split_once('/')?;
    Some([first.parse().ok()?, second.parse().ok()?])
}

pub(crate) fn number(node: &Name, number: u16) -> String {
    format!("{}{number:04}", numbers(node))
}

/// Returns the beginning of the keys of a node's numbers.
pub(crate) fn numbers(node: &Name) -> String {
    format!("{NUMBER}{node}/")
}

/// Splits a key after its kind. Returns `None` for a key of which there is only one.
pub(crate) fn split(key: &str) -> Option<(&str, &str)> {
    key.find('/').map(|slash| key.split_at(slash + 1))
}

/// Returns the node and the number in the rest of the key of a number.
pub(crate) fn split_number(rest: &str) -> Option<(Name, u16)> {
    let (node, number) = rest.split_once('/')?;
    Some((node.parse().ok()?, number.parse().ok()?))
}

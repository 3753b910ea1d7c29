//! The paths that do not carry copies although everything here is in order: something on the way drops
//! them or all packets, or the next hop has moved.

use super::Node;
use super::environment::next_hop;
use crate::config::Config;
use crate::echo::Echoes;
use anyhow::Result;
use hawser_io::interface;
use hawser_units::{Instant, PathId};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{debug, warn};

/// The longest pause between two attempts to find the next hop of a path on which the other node is
/// silent. The first ones are one second apart.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The searches for the next hops of silent paths.
#[derive(Debug, Default)]
pub(super) struct Searches {
    by_path: BTreeMap<PathId, Search>,
}

#[derive(Debug)]
struct Search {
    next: Instant,
    pause: Duration,
}

impl Searches {
    /// Returns whether a path's next hop is to be looked for now. `is_silent`: the other node has become
    /// silent on it.
    fn is_due(&mut self, path: PathId, is_silent: bool, now: Instant) -> bool {
        if !is_silent {
            self.by_path.remove(&path);
            return false;
        }
        let search = self.by_path.entry(path).or_insert(Search {
            next: now,
            pause: Duration::from_secs(1),
        });
        let is_due = now >= search.next;
        if is_due {
            search.next = now + search.pause;
            search.pause = (2 * search.pause).min(LONGEST_PAUSE);
        }
        is_due
    }
}

impl Node {
    /// Stops sending copies on the paths where they do not arrive, and resumes where they do. Looks for
    /// next hops that may have moved. Call this every second.
    pub(crate) fn check_reach(&mut self, echoes: &Echoes, now: Instant) {
        let numbers = self.config.paths.keys().copied().collect::<Vec<_>>();
        let Config {
            port, echo_port, ..
        } = self.config;
        let why = || {
            format!(
                "copies do not arrive: UDP {port} seems to be dropped on the way, where other packets pass; allow it in \
                 the firewalls of both nodes and between them"
            )
        };
        let losing = numbers.iter().filter(|path| echoes.loses_copies(**path));
        let losing = losing
            .map(|path| (*path, why()))
            .collect::<BTreeMap<_, _>>();
        let nothing = || {
            format!(
                "nothing arrives: the other node answers on other paths, and on this one neither on UDP {port} nor on UDP \
                 {echo_port}; allow both in the firewalls of both nodes and between them, and look at its next hop"
            )
        };
        let unanswered = numbers
            .iter()
            .filter(|path| echoes.is_unanswered(**path, now));
        let unanswered = unanswered.map(|path| (*path, nothing()));
        self.must_follow |= self.paths.set_unanswered(unanswered.collect());
        let are_all = !numbers.is_empty() && losing.len() == numbers.len();
        self.must_follow |= self.paths.set_losing(losing);
        if are_all && self.must_follow && self.sender.is_some() {
            warn!(
                "copies arrive on no path: the packets of all flows take the default route, without copies"
            );
        }
        for path in numbers {
            let is_silent = echoes.has_become_silent(path, now);
            if !self.searches.is_due(path, is_silent, now) {
                continue;
            }
            match self.renew_next_hop(path) {
                // The answer is there when the paths are looked up again, after a second.
                Ok(is_renewed) => self.must_follow |= is_renewed,
                Err(error) => debug!(%path, "cannot look for the next hop: {error:#}"),
            }
        }
    }

    /// Returns the number of the last echo request on the port of a path's copies.
    pub(crate) fn last_echo_request(&self, path: PathId) -> Option<u32> {
        let receiver = self.receiver.as_ref()?;
        receiver.last_echo_request(path).ok()?
    }

    /// Makes the kernel resolve the next hop of a path again. Returns whether it does.
    fn renew_next_hop(&self, path: PathId) -> Result<bool> {
        let description = &self.config.paths[&path];
        let next_hop = next_hop(description, self.locals.get(path))?;
        let Ok(interface) = interface::find(&description.interface) else {
            return Ok(false);
        };
        Ok(interface::renew_neighbour(next_hop, &interface)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_path_is_searched_soon_and_then_less_often() {
        let path = PathId::from_number(2).unwrap();
        let mut searches = Searches::default();
        let mut at = |second: u64, is_silent| {
            let now = Instant::ZERO + Duration::from_secs(second);
            searches.is_due(path, is_silent, now)
        };
        assert!(!at(0, false));
        let searched = (1..=20).filter(|second| at(*second, true));
        assert_eq!(searched.collect::<Vec<_>>(), [1, 2, 4, 8, 13, 18]);
        assert!(!at(21, false));
        assert!(at(22, true));
    }
}

use super::{Behaviour, Candidate, Place, View};
use crate::config::Config;
use crate::path::Path;
use hawser_units::Instant;
use std::time::Duration;

/// The path that is expected to deliver soonest. The paper takes the one of the lowest round-trip time that has window
/// (Ni, section 4.2); here the time counts what is under way over the path, at the rate that it was seen to take, so that
/// a frame larger than one path's share goes over several; a path that falls behind counts as that late at once, and a
/// silent one is left alone.
#[derive(Debug)]
pub(crate) struct Soonest;

impl Behaviour for Soonest {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        let room = |path: &Path| match candidate.is_bulk {
            true => path.room_for_bulk(view.now, candidate.size, candidate.queue),
            false => path.room_within(candidate.size, candidate.queue),
        };
        let is_any_open = view
            .paths
            .iter()
            .any(|path| is_open(path, view.now, view.config));
        let may_take = |path: &&Path| match is_any_open {
            true => is_open(path, view.now, view.config) && room(path) > 0,
            false => path.outstanding_bytes() < TRIAL && path.fits(candidate.size),
        };
        let paths = view.paths.iter().filter(may_take);
        paths
            .min_by_key(|path| expected(path, view.now, view.config, candidate.size))
            .map(|path| path.id)
            .into()
    }
}

/// Bytes under way with which a path is tried when none is open.
const TRIAL: u64 = 3_000;

/// Whether new packets may take a path: not while it is silent, and not while a queue stands there. What waits for it waits
/// better here, where it can take another path.
pub(crate) fn is_open(path: &Path, now: Instant, config: &Config) -> bool {
    !path.silent && path.backlog(now, config) <= config.queue_delay
}

/// How long a packet of `size` bytes that is sent now is expected to take until it is acknowledged.
pub(crate) fn expected(path: &Path, now: Instant, config: &Config, size: usize) -> Duration {
    let outstanding = &path.outstanding;
    let usual = outstanding.expected(path.outstanding_bytes().saturating_add(size as u64));
    let waiting = if path.is_quiet(now, config) {
        path.waiting(now)
    } else {
        Duration::ZERO
    };
    let penalty = Duration::from_secs_f64(outstanding.loss() * LOSS_PENALTY.as_secs_f64());
    usual
        .unwrap_or(path.state.rtt.smoothed)
        .max(waiting)
        .saturating_add(penalty)
}

/// What a lost packet costs: until it counts as lost, and until its recovery arrives.
const LOSS_PENALTY: Duration = Duration::from_millis(200);

use super::{Candidate, PathChoice, Scheduler, View};
use crate::config::Config;
use crate::path::Path;
use hawser_units::Instant;
use std::time::Duration;

/// Selects the path with the earliest expected delivery. The paper uses the path with the lowest
/// round-trip time of those with window (Ni, section 4.2). Here the expected time includes the
/// bytes in flight at the estimated rate of the path, so a frame that exceeds the share of one path
/// is spread over several. The lateness of a path counts at once, and silent paths are not used.
#[derive(Debug)]
pub(crate) struct EarliestDelivery;

impl Scheduler for EarliestDelivery {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
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
            .min_by_key(|path| expected_delay(path, view.now, view.config, candidate.size))
            .map(|path| path.id)
            .into()
    }
}

/// The bytes in flight up to which a path is tried when none is open.
const TRIAL: u64 = 3_000;

/// Returns whether new packets may take a path: it is not silent and has no long queue. Packets
/// wait in the sender rather than on the path, because there they can still take another path.
pub(crate) fn is_open(path: &Path, now: Instant, config: &Config) -> bool {
    !path.silent && path.backlog(now, config) <= config.max_path_backlog
}

/// Returns the expected time until a packet of `size` bytes that is sent now is acknowledged.
pub(crate) fn expected_delay(path: &Path, now: Instant, config: &Config, size: usize) -> Duration {
    let transmissions = &path.transmissions;
    let usual = transmissions.expected_delay(path.outstanding_bytes().saturating_add(size as u64));
    let waiting = if path.is_quiet(now, config) {
        path.unacked_for(now)
    } else {
        Duration::ZERO
    };
    let penalty = Duration::from_secs_f64(transmissions.loss() * LOSS_PENALTY.as_secs_f64());
    usual
        .unwrap_or(path.state.rtt.smoothed)
        .max(waiting)
        .saturating_add(penalty)
}

/// The delay caused by a loss: until the packet counts as lost, and until its recovery arrives.
const LOSS_PENALTY: Duration = Duration::from_millis(200);

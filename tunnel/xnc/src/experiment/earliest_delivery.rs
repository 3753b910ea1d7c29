use super::{Candidate, Path, PathChoice, Scheduler, View};

/// Selects the path with the earliest expected delivery. The paper uses the path with the lowest
/// round-trip time of those with window (Ni, section 4.2). Here the expected time includes the
/// bytes in flight at the estimated rate of the path, so a frame that exceeds the share of one path
/// is spread over several. The lateness of a path counts at once, and silent paths are not used.
#[derive(Debug)]
pub(super) struct EarliestDelivery;

impl Scheduler for EarliestDelivery {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        let room = |path: &Path| match candidate.is_bulk {
            true => path.room_for_bulk(view.now, candidate.size, candidate.queue),
            false => path.room_within(candidate.size, candidate.queue),
        };
        let is_any_open = view
            .paths
            .iter()
            .any(|path| path.is_open(view.now, view.config));
        let may_take = |path: &&Path| match is_any_open {
            true => path.is_open(view.now, view.config) && room(path) > 0,
            false => path.outstanding_bytes() < TRIAL && path.fits(candidate.size),
        };
        let paths = view.paths.iter().filter(may_take);
        paths
            .min_by_key(|path| path.expected_delay(view.now, candidate.size))
            .map(|path| path.id)
            .into()
    }
}

/// The bytes in flight up to which a path is tried when none is open.
const TRIAL: u64 = 3_000;

//! Redirection: one path, the one with the smallest measured round-trip time (Qian, section IV-D).

use hawser_units::PathId;
use std::time::Duration;

/// A path that a flow could take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub path: PathId,
    /// Its round-trip time, if it has been measured.
    pub rtt: Option<Duration>,
    /// Whether it can be used.
    pub up: bool,
}

/// The path that the flow should take; none when none can be used.
///
/// The flow stays on `current` unless another path's round-trip time is smaller by more than `hysteresis`, or `current`
/// cannot be used. A path that was never measured is only taken when no measured one can be used. Equals: the lower
/// index.
pub fn best(candidates: &[Candidate], current: Option<PathId>, hysteresis: Duration) -> Option<PathId> {
    let rank = |candidate: &&Candidate| (candidate.rtt.unwrap_or(Duration::MAX), candidate.path);
    let up = || candidates.iter().filter(|candidate| candidate.up);
    let best = up().min_by_key(rank)?;
    let stays = up().find(|candidate| Some(candidate.path) == current).filter(|current| {
        let gain = current.rtt.unwrap_or(Duration::MAX).saturating_sub(best.rtt.unwrap_or(Duration::MAX));
        gain <= hysteresis
    });
    Some(stays.unwrap_or(best).path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYSTERESIS: Duration = Duration::from_millis(5);

    fn path(index: u8) -> PathId {
        PathId::try_from(index).unwrap()
    }

    fn measured(index: u8, rtt_ms: u64) -> Candidate {
        Candidate { path: path(index), rtt: Some(Duration::from_millis(rtt_ms)), up: true }
    }

    #[test]
    fn the_smallest_round_trip_time_wins() {
        let paths = [measured(0, 90), measured(1, 65), measured(2, 65), measured(3, 200)];
        assert_eq!(best(&paths, None, HYSTERESIS), Some(path(1)));
        assert_eq!(best(&paths, Some(path(0)), HYSTERESIS), Some(path(1)));
    }

    #[test]
    fn a_small_gain_is_not_worth_a_change() {
        assert_eq!(best(&[measured(0, 45), measured(1, 40)], Some(path(0)), HYSTERESIS), Some(path(0)));
        assert_eq!(best(&[measured(0, 46), measured(1, 40)], Some(path(0)), HYSTERESIS), Some(path(1)));
    }

    #[test]
    fn a_path_that_is_down_is_left_whatever_it_costs() {
        let down = Candidate { up: false, ..measured(0, 40) };
        assert_eq!(best(&[down, measured(1, 400)], Some(path(0)), HYSTERESIS), Some(path(1)));
        assert_eq!(best(&[down], Some(path(0)), HYSTERESIS), None);
    }

    #[test]
    fn what_was_not_measured_comes_last() {
        let unknown = |index| Candidate { rtt: None, ..measured(index, 0) };
        assert_eq!(best(&[unknown(0), measured(1, 400)], Some(path(0)), HYSTERESIS), Some(path(1)));
        assert_eq!(best(&[unknown(0), unknown(1)], Some(path(1)), HYSTERESIS), Some(path(1)));
        assert_eq!(best(&[unknown(0), unknown(1)], None, HYSTERESIS), Some(path(0)));
    }
}

use hawser_units::{FlowId, Instant, PathId, PathSet};
use std::collections::BTreeMap;
use std::time::Duration;

/// Nobody waits longer for the first copy of a flow that may be idle.
const PATIENCE: Duration = Duration::from_secs(10);

/// Finds when, after a change of policy, the first copy took a path that none took before.
#[derive(Debug, Default)]
pub(crate) struct Onsets {
    waiting: BTreeMap<FlowId, Onset>,
    /// Copies by flow and path as they were counted last.
    counted: BTreeMap<(FlowId, PathId), u64>,
}

#[derive(Debug)]
struct Onset {
    epoch: u32,
    since: Instant,
    /// The paths that none took before, and how many copies they had had.
    before: Vec<(PathId, u64)>,
}

/// The first copy was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstCopy {
    pub(crate) flow: FlowId,
    pub(crate) epoch: u32,
    /// How long after the policy took effect it was noticed.
    pub(crate) after: Duration,
}

impl Onsets {
    /// A policy took effect at `since`: packets of the flow now take `paths`, and took `before` until then. Counts are
    /// those of the last [`Onsets::note`], when the new paths were not in use.
    pub(crate) fn begin(
        &mut self,
        flow: FlowId,
        epoch: u32,
        before: PathSet,
        paths: PathSet,
        since: Instant,
    ) {
        let new = paths.iter().filter(|path| !before.contains(*path));
        let counted = |path| self.counted.get(&(flow, path)).copied().unwrap_or(0);
        let before: Vec<_> = new.map(|path| (path, counted(path))).collect();
        if before.is_empty() {
            self.waiting.remove(&flow);
        } else {
            self.waiting.insert(
                flow,
                Onset {
                    epoch,
                    since,
                    before,
                },
            );
        }
    }

    /// Whether to look often.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Remembers how many copies of a flow a path has had.
    pub(crate) fn note(&mut self, flow: FlowId, path: PathId, copies: u64) {
        self.counted.insert((flow, path), copies);
    }

    /// Looks at the counters of the flows that are waited for.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        copies: impl Fn(FlowId, PathId) -> u64,
    ) -> Vec<FirstCopy> {
        let mut found = Vec::new();
        self.waiting.retain(|flow, onset| {
            let began = onset
                .before
                .iter()
                .any(|(path, before)| copies(*flow, *path) > *before);
            let after = now.saturating_since(onset.since);
            if began {
                found.push(FirstCopy {
                    flow: *flow,
                    epoch: onset.epoch,
                    after,
                });
            }
            !began && after < PATIENCE
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn the_first_copy_on_a_new_path_counts_and_no_other() {
        let flow = FlowId::try_from(3).unwrap();
        let [old, new] = [0, 1].map(|index| PathId::try_from(index).unwrap());
        let mut onsets = Onsets::default();
        onsets.note(flow, old, 100);
        onsets.note(flow, new, 7);
        onsets.begin(
            flow,
            5,
            PathSet::from_bits(0b1),
            PathSet::from_bits(0b11),
            at(10),
        );
        let copies = |on_new: u64| move |_, path| if path == new { on_new } else { 200 };
        assert_eq!(onsets.poll(at(12), copies(7)), []);
        let after = Duration::from_millis(5);
        assert_eq!(
            onsets.poll(at(15), copies(8)),
            [FirstCopy {
                flow,
                epoch: 5,
                after
            }]
        );
        assert!(!onsets.is_waiting());
    }

    #[test]
    fn a_policy_with_fewer_paths_and_a_flow_that_is_idle_are_not_waited_for() {
        let flow = FlowId::try_from(3).unwrap();
        let mut onsets = Onsets::default();
        onsets.begin(
            flow,
            1,
            PathSet::from_bits(0b11),
            PathSet::from_bits(0b1),
            at(0),
        );
        assert!(!onsets.is_waiting());
        onsets.begin(
            flow,
            2,
            PathSet::from_bits(0b1),
            PathSet::from_bits(0b11),
            at(0),
        );
        assert_eq!(onsets.poll(at(10_000), |_, _| 0), []);
        assert!(!onsets.is_waiting());
    }
}

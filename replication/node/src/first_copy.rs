use hawser_units::{FlowId, Instant, PathId, PathSet};
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest wait for the first copy of a flow, which may be idle.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Detects the first copy on a newly used path after a policy change.
#[derive(Debug, Default)]
pub(crate) struct FirstCopies {
    waiting: BTreeMap<FlowId, AwaitedCopy>,
    /// The last recorded counts of copies, by flow and path.
    counted: BTreeMap<(FlowId, PathId), u64>,
}

#[derive(Debug)]
struct AwaitedCopy {
    epoch: u32,
    since: Instant,
    /// The newly used paths, with the counts of copies before the policy change.
    before: Vec<(PathId, u64)>,
}

/// The first copy was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstCopy {
    pub(crate) flow: FlowId,
    pub(crate) epoch: u32,
    /// The time from when the policy took effect until the copy was detected.
    pub(crate) after: Duration,
}

impl FirstCopies {
    /// Starts to wait for the first copy under a policy that took effect at `since` and changed the
    /// paths of a flow from `before` to `paths`. The initial counts are those of the last
    /// [`FirstCopies::record`], when the new paths were not in use.
    pub(crate) fn start(
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
                AwaitedCopy {
                    epoch,
                    since,
                    before,
                },
            );
        }
    }

    /// Returns whether a first copy is awaited, so that counters should be polled often.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Records how many copies of a flow were sent on a path.
    pub(crate) fn record(&mut self, flow: FlowId, path: PathId, copies: u64) {
        self.counted.insert((flow, path), copies);
    }

    /// Returns the number of awaited copies and recorded counts.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.counted.len()
    }

    /// Stops waiting for the flows that are not in `keep`.
    pub(crate) fn retain(&mut self, keep: impl Fn(FlowId) -> bool) {
        self.waiting.retain(|flow, _| keep(*flow));
    }

    /// Polls the counters of the awaited flows.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        copies: impl Fn(FlowId, PathId) -> u64,
    ) -> Vec<FirstCopy> {
        let mut found = Vec::new();
        self.waiting.retain(|flow, awaited| {
            let was_sent = awaited
                .before
                .iter()
                .any(|(path, before)| copies(*flow, *path) > *before);
            let after = now.saturating_since(awaited.since);
            if was_sent {
                found.push(FirstCopy {
                    flow: *flow,
                    epoch: awaited.epoch,
                    after,
                });
            }
            !was_sent && after < MAX_WAIT
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
        let mut first_copies = FirstCopies::default();
        first_copies.record(flow, old, 100);
        first_copies.record(flow, new, 7);
        first_copies.start(
            flow,
            5,
            PathSet::from_bits(0b1),
            PathSet::from_bits(0b11),
            at(10),
        );
        let copies = |on_new: u64| move |_, path| if path == new { on_new } else { 200 };
        assert_eq!(first_copies.poll(at(12), copies(7)), []);
        let after = Duration::from_millis(5);
        assert_eq!(
            first_copies.poll(at(15), copies(8)),
            [FirstCopy {
                flow,
                epoch: 5,
                after
            }]
        );
        assert!(!first_copies.is_waiting());
    }

    #[test]
    fn fewer_paths_and_idle_flows_are_not_waited_for() {
        let flow = FlowId::try_from(3).unwrap();
        let mut first_copies = FirstCopies::default();
        first_copies.start(
            flow,
            1,
            PathSet::from_bits(0b11),
            PathSet::from_bits(0b1),
            at(0),
        );
        assert!(!first_copies.is_waiting());
        first_copies.start(
            flow,
            2,
            PathSet::from_bits(0b1),
            PathSet::from_bits(0b11),
            at(0),
        );
        assert_eq!(first_copies.poll(at(10_000), |_, _| 0), []);
        assert!(!first_copies.is_waiting());
    }
}

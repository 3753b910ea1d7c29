use crate::judged::JudgedPacket;
use crate::judgement::{JudgeEvent, Judgement};
use crate::proposal::Proposal;
use hawser_units::{Instant, MAX_PATHS, PathId, PathSet, PolicyCode};
use std::collections::VecDeque;
use std::time::Duration;

/// The parameters of Algorithm 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuccessiveConfig {
    /// W: packets in the sliding window. Zero counts as one. `None`: the packets of a frame, and
    /// 100 until their number is known ("the window size can be set according to the packet number
    /// per frame", Qian, section III-C).
    pub window: Option<u32>,
    /// α: a copy is rewarded if it arrives less than this after the first one.
    pub tolerance: Duration,
}

/// W of the paper's evaluation (Qian, section IV-A), in packets.
const WINDOW: u32 = 100;

/// The largest W of frames, in packets: a second at 15,000 packets a second.
const MAX_WINDOW: u32 = 15_000;

impl Default for SuccessiveConfig {
    /// The window of the flow's frames, and the tolerance of the paper's evaluation (Qian, section
    /// IV-A).
    fn default() -> Self {
        SuccessiveConfig {
            window: None,
            tolerance: Duration::from_millis(5),
        }
    }
}

/// Algorithm 1 of Qian et al., "sliding window based successive path elimination".
///
/// The algorithm only removes paths. A path without a reward in the window is removed. A path that
/// received all rewards of the window remains alone, and the algorithm ends until a policy adds
/// other paths. `docs/design/path-pruning.md` lists the points that the paper leaves open.
#[derive(Debug, Clone)]
pub struct Successive {
    config: SuccessiveConfig,
    /// W.
    size: u32,
    /// P: the paths left.
    paths: PathSet,
    /// n: packets so far.
    packets: u64,
    /// N: rewards in the window.
    rewards: [u32; MAX_PATHS],
    /// R of the last W packets: the paths that were rewarded.
    window: VecDeque<PathSet>,
    now: Instant,
    proposal: Proposal,
}

impl Successive {
    /// Creates a judge that starts with `paths`, all of which every packet takes.
    pub fn new(config: SuccessiveConfig, paths: PathSet) -> Self {
        Successive {
            size: config.window.unwrap_or(WINDOW).max(1),
            config,
            paths,
            packets: 0,
            rewards: [0; MAX_PATHS],
            window: VecDeque::new(),
            now: Instant::ZERO,
            proposal: Proposal::default(),
        }
    }

    /// Handles the next packet. A packet is ignored if it was not sent over all paths left, or if
    /// no copy of it arrived over any of them. A packet without a path set (`sent` is empty) is
    /// assumed to have been sent over all of them.
    pub fn handle_packet(&mut self, packet: &JudgedPacket) {
        let sent_over_all = packet.sent.is_empty() || self.paths.difference(packet.sent).is_empty();
        let Some(earliest) = self.paths.iter().filter_map(|path| packet.skew(path)).min() else {
            return;
        };
        if self.paths.len() < 2 || !sent_over_all {
            return;
        }
        let rewarded = |path: &PathId| {
            packet
                .skew(*path)
                .is_some_and(|skew| skew - earliest < self.config.tolerance)
        };
        self.step(self.paths.iter().filter(rewarded).collect());
    }

    /// Handles a policy that came into force. A policy that this judge did not propose restarts the
    /// algorithm with its paths. The epoch is not used, since packets carry their path set.
    pub fn handle_policy(&mut self, _epoch: u32, code: PolicyCode, _probes: PathSet, now: Instant) {
        self.now = self.now.max(now);
        self.proposal.withdraw();
        if code.paths() != self.paths {
            *self = Successive {
                now: self.now,
                size: self.size,
                ..Successive::new(self.config, code.paths())
            };
        }
    }

    /// Sets the number of packets per frame, the size of the window unless the configuration gives
    /// one. Rewards of packets that are left stay valid.
    pub fn handle_frame_size(&mut self, packets_per_frame: f64) {
        if self.config.window.is_some() || !packets_per_frame.is_finite() {
            return;
        }
        self.size = (packets_per_frame.round() as u32).clamp(1, MAX_WINDOW);
        while self.window.len() > self.size as usize {
            self.forget_first();
        }
        self.packets = self.window.len() as u64;
    }

    /// Returns when [`Successive::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.proposal.repeat_at()
    }

    /// Advances the time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.proposal.repeat_at().is_some_and(|due| due <= now) {
            self.proposal.repeat(now);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<JudgeEvent> {
        self.proposal.poll().map(JudgeEvent::Judgement)
    }

    /// Returns the paths left.
    pub fn paths(&self) -> PathSet {
        self.paths
    }

    /// Returns n: packets judged since the algorithm started.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns N: the rewards in the window, by path index.
    pub fn rewards(&self) -> &[u32; MAX_PATHS] {
        &self.rewards
    }

    /// Runs lines 3 to 15 of the algorithm for a packet whose copies on the paths `rewarded` are
    /// rewarded.
    fn step(&mut self, rewarded: PathSet) {
        let window = self.size;
        self.packets += 1;
        self.window.push_back(rewarded);
        rewarded
            .iter()
            .for_each(|path| self.rewards[path.index()] += 1);
        if self.packets <= u64::from(window) {
            return;
        }
        self.forget_first();

        let before = self.paths;
        self.paths = self
            .paths
            .iter()
            .filter(|path| self.rewards[path.index()] > 0)
            .collect();
        let alone = self
            .paths
            .iter()
            .find(|path| self.rewards[path.index()] == window);
        if let Some(path) = alone {
            self.paths = PathSet::EMPTY.with(path);
        }
        if self.paths != before {
            self.propose(before, alone);
        }
    }

    /// Removes the rewards of the oldest packet.
    fn forget_first(&mut self) {
        let left = self.window.pop_front().unwrap_or_default();
        left.iter().for_each(|path| self.rewards[path.index()] -= 1);
    }

    fn propose(&mut self, before: PathSet, alone: Option<PathId>) {
        let reason = match alone {
            Some(path) => format!("{path} was in time for all of {} packets", self.size),
            None => {
                let removed = before.iter().filter(|path| !self.paths.contains(*path));
                let names: Vec<_> = removed.map(|path| path.to_string()).collect();
                format!(
                    "{} was in time for none of {} packets",
                    names.join(" and "),
                    self.size
                )
            }
        };
        let code = PolicyCode(self.paths.bits());
        let judgement = Judgement {
            code,
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason,
        };
        self.proposal.propose(judgement, self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::FlowId;

    /// The skews of a packet's copies in milliseconds, by path; `None` where no copy arrived.
    type Skews<'a> = &'a [Option<u64>];

    fn packet(sequence: u64, skews: Skews) -> JudgedPacket {
        let mut packet = JudgedPacket {
            at: Instant::ZERO,
            flow: FlowId::try_from(0).unwrap(),
            sequence,
            epoch: 0,
            sent: PathId::all().take(skews.len()).collect(),
            sent_micros: 0,
            first: None,
            skews: [None; MAX_PATHS],
        };
        for (path, skew) in PathId::all().zip(skews) {
            packet.skews[path.index()] = skew.map(Duration::from_millis);
            packet.first = packet.first.or((*skew == Some(0)).then_some(path));
        }
        packet
    }

    fn judge(window: u32, paths: u8) -> Successive {
        let config = SuccessiveConfig {
            window: Some(window),
            tolerance: Duration::from_millis(5),
        };
        Successive::new(config, PathSet::from_bits(paths))
    }

    /// Each line is a packet: the skews of its copies, N of each path after it, P after it.
    fn check(judge: &mut Successive, lines: &[(Skews, [u32; 3], u8)]) {
        for (n, (skews, rewards, paths)) in (1..).zip(lines) {
            judge.handle_packet(&packet(n, skews));
            assert_eq!(judge.rewards()[..3], *rewards, "N after packet {n}");
            assert_eq!(judge.paths().bits(), *paths, "P after packet {n}");
        }
    }

    fn proposed(judge: &mut Successive) -> Vec<u8> {
        std::iter::from_fn(|| judge.poll_event())
            .map(|event| match event {
                JudgeEvent::Judgement(judgement) => judgement.code.0,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    const NO: Option<u64> = None;
    const fn ms(skew: u64) -> Option<u64> {
        Some(skew)
    }

    #[test]
    fn a_path_without_a_reward_in_the_window_is_removed() {
        let mut judge = judge(3, 0b111);
        check(
            &mut judge,
            &[
                (&[ms(0), ms(9), ms(70)], [1, 0, 0], 0b111),
                (&[ms(9), ms(0), ms(70)], [1, 1, 0], 0b111),
                (&[ms(0), ms(2), ms(70)], [2, 2, 0], 0b111),
                // n = 4 > W: the first packet leaves the window, and path 3 has nothing in it.
                (&[ms(8), ms(0), ms(60)], [1, 3, 0], 0b010),
            ],
        );
        assert_eq!(proposed(&mut judge), [0b010]);
    }

    #[test]
    fn nothing_is_removed_before_more_than_a_window_has_passed() {
        let mut judge = judge(3, 0b11);
        check(
            &mut judge,
            &[
                (&[ms(0), NO], [1, 0, 0], 0b11),
                (&[ms(0), NO], [2, 0, 0], 0b11),
                (&[ms(0), NO], [3, 0, 0], 0b11),
            ],
        );
        assert_eq!(proposed(&mut judge), []);
    }

    #[test]
    fn a_path_with_all_rewards_remains_alone() {
        let mut judge = judge(2, 0b11);
        check(
            &mut judge,
            &[
                (&[ms(4), ms(0)], [1, 1, 0], 0b11),
                (&[ms(6), ms(0)], [1, 2, 0], 0b11),
                // Path 1 has one reward of two, path 2 both.
                (&[ms(0), ms(1)], [1, 2, 0], 0b10),
                // The algorithm has ended.
                (&[ms(0), ms(9)], [1, 2, 0], 0b10),
            ],
        );
        assert_eq!(judge.packets(), 3);
        assert_eq!(proposed(&mut judge), [0b10]);
    }

    #[test]
    fn of_two_paths_with_all_rewards_the_lower_index_remains() {
        let mut judge = judge(2, 0b111);
        check(
            &mut judge,
            &[
                (&[ms(9), ms(0), ms(1)], [0, 1, 1], 0b111),
                (&[ms(0), ms(0), ms(4)], [1, 2, 2], 0b111),
                (&[ms(9), ms(2), ms(0)], [1, 2, 2], 0b010),
            ],
        );
    }

    #[test]
    fn the_window_slides() {
        let mut judge = judge(2, 0b11);
        check(
            &mut judge,
            &[
                (&[ms(0), ms(9)], [1, 0, 0], 0b11),
                (&[ms(9), ms(0)], [1, 1, 0], 0b11),
                (&[ms(0), ms(9)], [1, 1, 0], 0b11),
                (&[ms(9), ms(0)], [1, 1, 0], 0b11),
                (&[ms(9), ms(0)], [0, 2, 0], 0b10),
            ],
        );
    }

    #[test]
    fn the_tolerance_itself_is_too_late() {
        let mut judge = judge(5, 0b11);
        check(
            &mut judge,
            &[
                (&[ms(0), ms(5)], [1, 0, 0], 0b11),
                (&[ms(4), ms(0)], [2, 1, 0], 0b11),
            ],
        );
    }

    #[test]
    fn lost_copies_have_no_reward_and_lost_packets_do_not_count() {
        let mut judge = judge(2, 0b11);
        check(
            &mut judge,
            &[
                (&[ms(0), NO], [1, 0, 0], 0b11),
                (&[NO, NO], [1, 0, 0], 0b11),
                (&[NO, ms(0)], [1, 1, 0], 0b11),
                (&[NO, NO], [1, 1, 0], 0b11),
            ],
        );
        assert_eq!(judge.packets(), 2);
    }

    #[test]
    fn only_paths_that_are_left_are_compared() {
        let mut judge = judge(1, 0b111);
        check(
            &mut judge,
            &[
                (&[ms(0), ms(0), NO], [1, 1, 0], 0b111),
                (&[ms(9), ms(9), ms(0)], [0, 0, 1], 0b100),
            ],
        );

        judge.handle_policy(2, PolicyCode(0b011), PathSet::EMPTY, Instant::ZERO);
        // A copy over path 3, which is no longer in use, does not make the others late.
        judge.handle_packet(&packet(3, &[ms(9), ms(9), ms(0)]));
        assert_eq!(judge.rewards()[..3], [1, 1, 0]);
    }

    #[test]
    fn the_proposed_policy_changes_nothing_and_another_restarts() {
        let mut judge = judge(2, 0b111);
        for n in 1..=3 {
            judge.handle_packet(&packet(n, &[ms(n % 2 * 9), ms((n + 1) % 2 * 9), NO]));
        }
        assert_eq!(proposed(&mut judge), [0b011]);
        judge.handle_policy(2, PolicyCode(0b011), PathSet::EMPTY, Instant::ZERO);
        assert_eq!(
            (judge.packets(), judge.rewards()[..2].to_vec()),
            (3, vec![1, 1])
        );

        judge.handle_policy(3, PolicyCode(0b111), PathSet::EMPTY, Instant::ZERO);
        assert_eq!((judge.packets(), judge.paths().bits()), (0, 0b111));
        // Packets sent before the policy came into force were not sent over all of its paths.
        judge.handle_packet(&packet(4, &[ms(0), ms(0)]));
        assert_eq!(judge.packets(), 0);
    }

    #[test]
    fn a_judgement_that_is_not_applied_is_repeated() {
        let mut judge = judge(1, 0b11);
        judge.handle_packet(&packet(1, &[ms(0), NO]));
        judge.handle_packet(&packet(2, &[ms(0), NO]));
        assert_eq!(proposed(&mut judge), [0b01]);

        let again = judge.poll_timeout().unwrap();
        judge.handle_timeout(again);
        assert_eq!(proposed(&mut judge), [0b01]);
        judge.handle_policy(2, PolicyCode(0b01), PathSet::EMPTY, again);
        assert_eq!(judge.poll_timeout(), None);
    }

    #[test]
    fn the_window_is_as_long_as_a_frame() {
        let both = PathSet::from_bits(0b11);
        let mut judge = Successive::new(SuccessiveConfig::default(), both);
        let send = |judge: &mut Successive, packets| {
            (0..packets).for_each(|n| judge.handle_packet(&packet(n, &[ms(0), ms(1)])));
        };
        judge.handle_frame_size(20.4);
        send(&mut judge, 15);
        assert_eq!(judge.rewards()[..2], [15, 15]);
        judge.handle_frame_size(10.0);
        assert_eq!(judge.rewards()[..2], [10, 10], "the last ten packets");
        assert_eq!(proposed(&mut judge), [], "a change of W decides nothing");
        send(&mut judge, 1);
        assert_eq!(proposed(&mut judge), [0b01], "in time for all of ten");

        let config = SuccessiveConfig {
            window: Some(100),
            ..SuccessiveConfig::default()
        };
        let mut fixed = Successive::new(config, both);
        fixed.handle_frame_size(10.0);
        send(&mut fixed, 100);
        assert_eq!(proposed(&mut fixed), [], "a configured W stays");
    }
}

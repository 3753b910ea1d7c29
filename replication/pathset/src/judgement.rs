use hawser_units::{PathId, PathSet, PolicyCode};

/// The policy of a flow that a judge proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The paths that every packet should take.
    pub code: PolicyCode,
    /// The paths that one packet in `probe_every` should take in addition.
    pub probes: PathSet,
    /// The probing interval in packets: a power of two, or 0 without probes.
    pub probe_every: u16,
    /// The reason, for humans.
    pub reason: String,
}

/// An event from a judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JudgeEvent {
    /// The policy should change. Repeated while the policy in force stays the same.
    Judgement(Judgement),
    /// None of the copies expected over the path has arrived for a while.
    PathSilent(PathId),
    /// A copy arrived over a path that was silent.
    PathRestored(PathId),
    /// A path that every packet takes no longer contributes, although packets still arrive over the
    /// others.
    LatentError(PathId),
}

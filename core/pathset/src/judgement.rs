use hawser_units::{PathId, PathSet, PolicyCode};

/// What a judge says the policy of a flow should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The paths that every packet should take.
    pub code: PolicyCode,
    /// The paths that one packet in `probe_every` should take as well.
    pub probes: PathSet,
    /// A power of two; 0 when nothing is probed.
    pub probe_every: u16,
    /// Why, for people.
    pub reason: String,
}

/// What a judge has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JudgeEvent {
    /// The policy should be another one. Said again while the policy in force remains what it was.
    Judgement(Judgement),
    /// Not one of the copies that should have come by the path has come for a while.
    PathSilent(PathId),
    /// A copy came by a path that was silent.
    PathRestored(PathId),
    /// A path that every packet takes has stopped to contribute, although packets still arrive by the others.
    LatentError(PathId),
}

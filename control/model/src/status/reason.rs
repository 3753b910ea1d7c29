/// The kinds of conditions, in the order in which a flow becomes protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionKind {
    /// The ingress reports to a controller.
    IngressAlive,
    /// The egress reports to a controller.
    EgressAlive,
    /// Both nodes have paths of the same numbers that the flow may use.
    PathsShared,
    /// The paths that the flow takes, or could take, are up and answer.
    PathsUp,
    /// Both nodes have applied the flow.
    Assigned,
    /// The egress deduplicates the flow's copies.
    EgressReady,
    /// The flow needs help now.
    Triggered,
    /// The ingress applies a policy that protects the flow, to packets of the flow.
    Replicating,
    /// Copies arrive at the egress on every path that packets take.
    Arriving,
    /// The flow is protected: the summary of all others.
    Protected,
}

impl ConditionKind {
    /// Returns the name in messages.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

/// The reasons for the status of conditions. Their names are stable for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The node reports.
    Alive,
    /// The node has never registered.
    NeverRegistered,
    /// The node has stopped reporting.
    Lost,
    /// The nodes share at least two paths.
    Shared,
    /// A node has registered no path.
    NoPaths,
    /// The nodes have no path number in common.
    NoCommonPath,
    /// `paths` of the flow leaves out every shared path.
    PathsExcluded,
    /// A single path is left: copies need two.
    OnePath,
    /// The paths are up and answer.
    Up,
    /// An interface is down, or the next hop is unknown.
    PathDown,
    /// The other node does not answer on a path.
    NoAnswer,
    /// The node has not reported yet.
    NotReported,
    /// The node reports to another controller.
    ReportsElsewhere,
    /// The nodes have applied the flow.
    Applied,
    /// A node has not yet applied the last change of the flow.
    Pending,
    /// A node cannot carry out its part of the flow.
    NotApplied,
    /// A node does not carry out its part of the flow, because it shares no key with the other node.
    NoKey,
    /// A node carries out its part of the flow, except for something that it has reported.
    AppliedInPart,
    /// The egress deduplicates.
    Deduplicating,
    /// The egress has not reported yet that it deduplicates.
    Waiting,
    /// The flow needs help at all times.
    Always,
    /// The viewer's requests were late, or the application reported late frames.
    Degraded,
    /// The viewer's requests have not been late.
    NotLate,
    /// An operator has chosen the paths.
    Operator,
    /// The mode is `single`.
    ModeSingle,
    /// Packets take the default route.
    DefaultRoute,
    /// The policy stops the flow.
    Stopped,
    /// Packets are replicated.
    Replicated,
    /// Packets take another path than the default route, as the mode `redirect` says.
    Redirected,
    /// One path suffices, as judged in the mode `auto`; help is taken as soon as it does not.
    Sufficient,
    /// The ingress has not replicated any packet.
    NoPackets,
    /// Nothing is sent that could arrive.
    NotReplicating,
    /// Copies arrive on all paths.
    OnAllPaths,
    /// Copies arrive on some paths only.
    OnSomePaths,
    /// No copy arrives.
    NoCopies,
    /// Copies arrive on at least two paths that are up.
    Redundant,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 36] = [
        Reason::Alive,
        Reason::NeverRegistered,
        Reason::Lost,
        Reason::Shared,
        Reason::NoPaths,
        Reason::NoCommonPath,
        Reason::PathsExcluded,
        Reason::OnePath,
        Reason::Up,
        Reason::PathDown,
        Reason::NoAnswer,
        Reason::NotReported,
        Reason::ReportsElsewhere,
        Reason::Applied,
        Reason::Pending,
        Reason::NotApplied,
        Reason::NoKey,
        Reason::AppliedInPart,
        Reason::Deduplicating,
        Reason::Waiting,
        Reason::Always,
        Reason::Degraded,
        Reason::NotLate,
        Reason::Operator,
        Reason::ModeSingle,
        Reason::DefaultRoute,
        Reason::Stopped,
        Reason::Replicated,
        Reason::Redirected,
        Reason::Sufficient,
        Reason::NoPackets,
        Reason::NotReplicating,
        Reason::OnAllPaths,
        Reason::OnSomePaths,
        Reason::NoCopies,
        Reason::Redundant,
    ];

    /// Returns the name in messages.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

use super::reason::{ConditionKind, Reason};
use super::{Condition, End, Facts, Truth};
use crate::resource::{Cause, Event, Mode};
use hawser_units::{PathSet, PolicyCode};

/// A status with its reason.
struct Finding {
    status: Truth,
    reason: Reason,
    message: String,
    since_unix_ms: Option<u64>,
}

impl Finding {
    fn new(status: Truth, reason: Reason, message: impl Into<String>) -> Self {
        Finding {
            status,
            reason,
            message: message.into(),
            since_unix_ms: None,
        }
    }

    fn holds(reason: Reason, message: impl Into<String>) -> Self {
        Finding::new(Truth::True, reason, message)
    }

    fn fails(reason: Reason, message: impl Into<String>) -> Self {
        Finding::new(Truth::False, reason, message)
    }

    fn unknown(reason: Reason, message: impl Into<String>) -> Self {
        Finding::new(Truth::Unknown, reason, message)
    }

    fn since(self, unix_ms: impl Into<Option<u64>>) -> Self {
        Finding {
            since_unix_ms: unix_ms.into(),
            ..self
        }
    }

    fn condition(&self, kind: ConditionKind) -> Condition {
        Condition {
            kind: kind.name(),
            status: self.status,
            reason: self.reason.name(),
            message: self.message.clone(),
            since_unix_ms: self.since_unix_ms,
        }
    }
}

impl Facts<'_> {
    /// Returns the conditions of the flow, in the order in which a flow becomes protected.
    pub fn conditions(&self) -> Vec<Condition> {
        let mut findings = vec![
            (ConditionKind::IngressAlive, self.alive(&self.ingress)),
            (ConditionKind::EgressAlive, self.alive(&self.egress)),
            (ConditionKind::PathsShared, self.shared()),
            (ConditionKind::PathsUp, self.up()),
            (ConditionKind::Assigned, self.assigned()),
            (ConditionKind::EgressReady, self.ready()),
            (ConditionKind::Triggered, self.triggered()),
            (ConditionKind::Replicating, self.replicating()),
            (ConditionKind::Arriving, self.arriving()),
        ];
        let protected = self.protected(&findings);
        findings.push((ConditionKind::Protected, protected));
        findings
            .iter()
            .map(|(kind, finding)| finding.condition(*kind))
            .collect()
    }

    fn alive(&self, end: &End<'_>) -> Finding {
        let node = end.node;
        if let Some(since) = end.alive_since_unix_ms {
            return Finding::holds(Reason::Alive, format!("{node} reports")).since(since);
        }
        match (end.paths, end.seen_unix_ms) {
            (None, None) => Finding::fails(Reason::NeverRegistered, self.start(end)),
            (_, seen) => Finding::fails(
                Reason::Lost,
                format!("{node} does not report: start its agent, or check its network to the controller; it keeps its last policies"),
            )
            .since(seen),
        }
    }

    /// Returns what to do about a node that has never registered.
    fn start(&self, end: &End<'_>) -> String {
        let (node, tenant) = (end.node, &self.flow.tenant);
        match end.is_enrolled {
            true => format!("{node} has never registered: start its agent, it is enrolled"),
            false => format!(
                "{node} has never registered: enrol it (`hawser ctl node enrol {node} --tenant {tenant} --out {node}.token`) and start its agent with the token"
            ),
        }
    }

    fn shared(&self) -> Finding {
        let registered = |end: &End<'_>| {
            self.last_of(end.node, &["node_registered"])
                .map(|event| event.at_unix_ms)
        };
        let since = registered(&self.ingress).max(registered(&self.egress));
        self.shared_paths().since(since)
    }

    fn shared_paths(&self) -> Finding {
        for end in [&self.ingress, &self.egress] {
            if end.paths.is_none_or(<[_]>::is_empty) {
                let message = if end.has_uplinks {
                    format!(
                        "no path of the uplinks of {} has been found: `hawser ctl topology` shows the candidates",
                        end.node
                    )
                } else {
                    format!(
                        "{0} has registered no path: add [[path]] or `uplinks` to its agent's file and restart the agent",
                        end.node
                    )
                };
                return Finding::fails(Reason::NoPaths, message);
            }
        }
        let (ingress, egress) = (numbers_of(&self.ingress), numbers_of(&self.egress));
        match (self.usable.len(), ingress.intersection(egress)) {
            (0, shared) if shared.is_empty() => Finding::fails(
                Reason::NoCommonPath,
                format!(
                    "{} has {} and {} has {}: a path has the same number in the files of both agents",
                    self.ingress.node,
                    list(ingress),
                    self.egress.node,
                    list(egress)
                ),
            ),
            (0, shared) => Finding::fails(
                Reason::PathsExcluded,
                format!(
                    "the nodes share {}, which `paths` of the flow leaves out: change it, or empty it for all",
                    list(shared)
                ),
            ),
            (1, _) if self.flow.mode != Mode::Redirect => Finding::fails(
                Reason::OnePath,
                format!(
                    "the flow may use {} alone, which protects from nothing: add a second path at both nodes",
                    list(self.usable)
                ),
            ),
            _ => Finding::holds(
                Reason::Shared,
                format!("the flow may use {}", list(self.usable)),
            ),
        }
    }

    /// Returns the paths that packets take, or could take on the default route.
    fn relevant(&self) -> PathSet {
        let taken = self.policy.code.paths();
        if taken.is_empty() { self.usable } else { taken }
    }

    fn up(&self) -> Finding {
        let paths = self.relevant();
        if self.health.is_empty() || paths.is_empty() {
            let message = format!("{} has not reported the health of paths", self.ingress.node);
            return Finding::unknown(Reason::NotReported, message);
        }
        let which = |has: fn(Option<&crate::resource::PathHealth>) -> bool| -> PathSet {
            paths
                .iter()
                .filter(|path| has(self.health_of(path.number())))
                .collect()
        };
        let down = which(|health| health.is_none_or(|health| !health.up));
        let silent =
            which(|health| health.is_some_and(|health| health.up && health.rtt_us.is_none()));
        if !down.is_empty() {
            let message = format!(
                "{} cannot use {}: check its interface, address and next hop with `hawser status` there",
                self.ingress.node,
                list(down)
            );
            Finding::fails(Reason::PathDown, message)
        } else if !silent.is_empty() {
            let message = format!(
                "{} does not answer on {}: check the route, the keys of [[peer]] and firewalls (UDP) between the nodes",
                self.egress.node,
                list(silent)
            );
            Finding::fails(Reason::NoAnswer, message)
        } else {
            Finding::holds(
                Reason::Up,
                format!("{} answers on {}", self.egress.node, list(paths)),
            )
        }
    }

    fn assigned(&self) -> Finding {
        let ingress = self.applied(&self.ingress, true);
        let egress = self.applied(&self.egress, false);
        match (ingress, egress) {
            (Ok(()), Ok(())) => Finding::holds(Reason::Applied, "both nodes have applied the flow"),
            (Err(why), Ok(())) | (Ok(()), Err(why)) => why,
            // The one that is certain comes first.
            (Err(ingress), Err(egress)) => match ingress.status {
                Truth::False => ingress,
                _ => egress,
            },
        }
    }

    /// Returns whether a node has applied its part of the flow.
    fn applied(&self, end: &End<'_>, is_ingress: bool) -> Result<(), Finding> {
        let node = end.node;
        let report = end.report.as_ref().ok_or_else(|| not_reported(end))?;
        let is_listed = match is_ingress {
            true => report.send.is_some(),
            false => report.receive.is_some(),
        };
        let refusal = self.refusal(end);
        match (is_listed, refusal) {
            (true, None) => Ok(()),
            (true, Some(event)) => {
                Err(Finding::fails(Reason::AppliedInPart, event.message.clone())
                    .since(event.at_unix_ms))
            }
            (false, Some(event)) if report.revision >= self.changed_in => {
                Err(Finding::fails(Reason::NotApplied, event.message.clone())
                    .since(event.at_unix_ms))
            }
            (false, None) if report.revision >= self.changed_in => Err(match &end.missing_key {
                Some(why) => Finding::fails(Reason::NoKey, why.clone()),
                None => Finding::fails(
                    Reason::NotApplied,
                    format!(
                        "{node} does not carry out the flow; its log and `hawser status` say why"
                    ),
                ),
            }),
            (false, _) => Err(Finding::fails(
                Reason::Pending,
                format!(
                    "{node} has not yet applied the flow as it is now; if this stays, check the agent's log"
                ),
            )),
        }
    }

    /// Returns the event of a node's last refusal, unless something shows that it is mended.
    fn refusal(&self, end: &End<'_>) -> Option<&Event> {
        const MENDED: [&str; 4] = [
            "not_applied",
            "node_registered",
            "node_alive",
            "policy_applied",
        ];
        self.last_of(end.node, &MENDED)
            .filter(|event| event.kind == MENDED[0] && event.number > self.changed_in)
    }

    fn ready(&self) -> Finding {
        let node = self.egress.node;
        let is_listed = self
            .egress
            .report
            .as_ref()
            .is_some_and(|report| report.receive.is_some());
        if self.received || is_listed {
            let since = self.events.iter().rev().find(|event| {
                event.kind == "flow_received" && event.flow.as_ref() == Some(&self.flow.name)
            });
            return Finding::holds(
                Reason::Deduplicating,
                format!("{node} deduplicates the copies"),
            )
            .since(since.map(|event| event.at_unix_ms));
        }
        if self.egress.alive_since_unix_ms.is_some() && self.egress.report.is_none() {
            return not_reported(&self.egress);
        }
        let message = format!(
            "{node} has not reported that it deduplicates the flow; until then, no copy is sent: see EgressAlive and Assigned"
        );
        Finding::fails(Reason::Waiting, message)
    }

    fn triggered(&self) -> Finding {
        let decided = self.policy.decided_unix_ms;
        if self.policy.reason == Cause::Operator {
            let message = format!(
                "an operator has chosen the paths; `hawser ctl policy auto {}` returns the choice to the controller",
                self.flow.name
            );
            return Finding::holds(Reason::Operator, message).since(decided);
        }
        match (&self.flow.trigger, self.policy.reason) {
            _ if self.flow.mode == Mode::Single => Finding::fails(
                Reason::ModeSingle,
                format!(
                    "the mode is `single`: choose another, such as `hawser ctl flow set {} --mode auto`",
                    self.flow.name
                ),
            ),
            _ if self.flow.mode == Mode::Auto => Finding::holds(
                Reason::Always,
                "in the mode `auto`, help is taken when packets are damaged, without waiting for the viewer",
            ),
            (None, _) => Finding::holds(Reason::Always, "the flow has no trigger and is always protected"),
            (Some(trigger), Cause::Configured) => Finding::fails(
                Reason::NotLate,
                format!(
                    "the viewer's requests have not been late since the flow was changed; {} requests later than {} ms start the protection",
                    trigger.consecutive, trigger.late_after_ms
                ),
            )
            .since(decided),
            (Some(_), _) => Finding::holds(Reason::Degraded, "the viewer's requests or frames were late").since(decided),
        }
    }

    fn replicating(&self) -> Finding {
        let decided = self.policy.decided_unix_ms;
        let code = self.policy.code;
        let taken = list(code.paths());
        let finding = match (code, code.paths().len()) {
            (PolicyCode::STOP, _) => Finding::fails(
                Reason::Stopped,
                format!(
                    "the policy stops the flow; `hawser ctl policy auto {}` returns the choice to the controller",
                    self.flow.name
                ),
            ),
            (_, 0) => Finding::fails(
                Reason::DefaultRoute,
                "packets take the default route; the conditions above say why",
            ),
            (_, 1) if !self.may_take_one_path() => Finding::fails(
                Reason::OnePath,
                format!(
                    "every packet takes {taken} alone ({})",
                    self.policy.reason.name()
                ),
            ),
            (_, paths) => return self.applied_policy(paths, &taken).since(decided),
        };
        finding.since(decided)
    }

    /// Returns whether the ingress applies the policy to packets.
    fn applied_policy(&self, paths: usize, taken: &str) -> Finding {
        let node = self.ingress.node;
        let Some(report) = &self.ingress.report else {
            return not_reported(&self.ingress);
        };
        let epoch = self.policy.epoch;
        match &report.send {
            Some(send) if send.epoch == epoch && send.packets == 0 => Finding::fails(
                Reason::NoPackets,
                format!(
                    "{node} has replicated no packet: check `select`, and that the packets pass an interface of its `transit` or `local`"
                ),
            ),
            Some(send) if send.epoch == epoch => {
                let reason = match paths {
                    1 => self.one_path(),
                    _ => Reason::Replicated,
                };
                Finding::holds(reason, format!("every packet takes {taken}"))
            }
            _ => Finding::fails(
                Reason::Pending,
                format!("{node} has not yet reported that it applies epoch {epoch}, {taken}"),
            ),
        }
    }

    /// Returns whether one path is what the mode may choose. An operator who chooses one does without
    /// protection.
    fn may_take_one_path(&self) -> bool {
        match self.flow.mode {
            Mode::Redirect => true,
            Mode::Auto => self.policy.reason != Cause::Operator,
            Mode::Single | Mode::Replicate | Mode::Successive | Mode::Evidence => false,
        }
    }

    /// Returns the reason for one path that the mode has chosen.
    fn one_path(&self) -> Reason {
        match self.flow.mode {
            Mode::Auto => Reason::Sufficient,
            _ => Reason::Redirected,
        }
    }

    fn arriving(&self) -> Finding {
        let paths = self.policy.code.paths();
        if paths.is_empty() {
            return Finding::unknown(
                Reason::NotReplicating,
                "no copy is sent, so none can arrive; see Replicating",
            );
        }
        let Some(report) = &self.egress.report else {
            return not_reported(&self.egress);
        };
        if report.receive.is_none() {
            return Finding::unknown(
                Reason::Waiting,
                format!(
                    "{} does not count the flow's copies; see Assigned",
                    self.egress.node
                ),
            );
        }
        let missing = paths.difference(self.arrived());
        let hint = "check the keys of [[peer]] at both nodes, firewalls (UDP), and the drops in `hawser status` there";
        match missing.len() {
            0 => Finding::holds(
                Reason::OnAllPaths,
                format!("copies have arrived on {}", list(paths)),
            ),
            all if all == paths.len() => Finding::fails(
                Reason::NoCopies,
                format!(
                    "no copy has arrived at {} on {}: {hint}",
                    self.egress.node,
                    list(paths)
                ),
            ),
            _ => Finding::fails(
                Reason::OnSomePaths,
                format!(
                    "no copy has arrived at {} on {}: {hint}",
                    self.egress.node,
                    list(missing)
                ),
            ),
        }
    }

    /// Returns the paths on which copies have arrived.
    fn arrived(&self) -> PathSet {
        let paths = self.policy.code.paths();
        paths
            .iter()
            .filter(|path| {
                self.arrivals(path.number())
                    .is_some_and(|seen| seen.arrivals > 0)
            })
            .collect()
    }

    /// Returns the summary: the first condition that does not hold is the reason.
    fn protected(&self, findings: &[(ConditionKind, Finding)]) -> Finding {
        let code = self.policy.code.paths();
        let working: PathSet = self
            .arrived()
            .iter()
            .filter(|path| {
                self.health_of(path.number())
                    .is_none_or(|health| health.up && health.rtt_us.is_some())
            })
            .collect();
        let takes_one = self.may_take_one_path() && code.len() == 1;
        let is_redirected = self.flow.mode == Mode::Redirect;
        let suffices = working.len() >= if is_redirected || takes_one { 1 } else { 2 };
        // Enough paths protect a flow even if others of its paths do not work.
        let is_minor = |kind: ConditionKind| {
            suffices && matches!(kind, ConditionKind::PathsUp | ConditionKind::Arriving)
        };
        // Certain findings come before unknown ones. In the mode `single`, nothing else matters.
        let order = |(_, finding): &&(ConditionKind, Finding)| {
            let is_wanted = finding.reason != Reason::ModeSingle;
            (finding.status != Truth::False, is_wanted)
        };
        let failing = findings
            .iter()
            .filter(|(kind, finding)| finding.status != Truth::True && !is_minor(*kind))
            .min_by_key(order);
        if let Some((kind, finding)) = failing {
            let message = format!("{}: {}", kind.name(), finding.message);
            return Finding::new(finding.status, finding.reason, message)
                .since(finding.since_unix_ms);
        }
        let reason = match takes_one {
            true => self.one_path(),
            false => Reason::Redundant,
        };
        Finding::holds(reason, format!("copies arrive on {}", list(working)))
            .since(self.policy.decided_unix_ms)
    }
}

/// Returns the finding for a node of which this controller has no report.
fn not_reported(end: &End<'_>) -> Finding {
    let node = end.node;
    match end.alive_since_unix_ms {
        Some(_) => Finding::unknown(
            Reason::ReportsElsewhere,
            format!(
                "{node} has not reported to this controller: ask again in a few seconds, or the controller that it reports to"
            ),
        ),
        None => Finding::unknown(
            Reason::NotReported,
            format!("{node} is not alive and has not reported"),
        ),
    }
}

fn numbers_of(end: &End<'_>) -> PathSet {
    let bits = end.paths.unwrap_or_default().iter().fold(0u8, |bits, end| {
        bits | 1u8
            .checked_shl(u32::from(end.number.saturating_sub(1)))
            .unwrap_or(0)
    });
    PathSet::from_bits(bits)
}

/// Formats paths: `path 1`, `paths 1 and 2`.
fn list(paths: PathSet) -> String {
    let numbers: Vec<String> = paths.iter().map(|path| path.number().to_string()).collect();
    match numbers.as_slice() {
        [] => "no path".to_owned(),
        [one] => format!("path {one}"),
        [first @ .., last] => format!("paths {} and {last}", first.join(", ")),
    }
}

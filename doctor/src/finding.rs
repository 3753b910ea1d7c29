use serde::Serialize;

/// A part of Hawser, which needs something of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// `hawser agent`
    Agent,
    /// `hawser relay`
    Relay,
    /// `hawser tunnel`
    Tunnel,
    /// `hawser controller`
    Controller,
    /// `hawser publish` and `hawser serve`
    Publish,
    /// `hawser view` and `hawser fetch`
    View,
}

impl Part {
    /// Returns the name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Part::Agent => "agent",
            Part::Relay => "relay",
            Part::Tunnel => "tunnel",
            Part::Controller => "controller",
            Part::Publish => "publish",
            Part::View => "view",
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing has to be done.
    Ok,
    /// Works, but less well than it could, or not in every case.
    Warning,
    /// Does not work.
    Failed,
    /// The machine did not tell.
    NotChecked,
}

/// The finding of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check, by a name that stays the same over versions.
    pub id: &'static str,
    /// The interface, port, peer, parameter or part that was checked, if the check has several.
    pub subject: Option<String>,
    /// The result.
    pub result: Verdict,
    /// The result, in one sentence.
    pub finding: String,
    /// The advice, in one sentence. `None` if nothing has to be done.
    pub advice: Option<String>,
    /// The parts of Hawser that need this. Empty if the command line asked for it.
    pub parts: &'static [Part],
}

/// A check without its result.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    id: &'static str,
    subject: Option<String>,
    parts: &'static [Part],
}

impl Check {
    pub(crate) fn new(id: &'static str, parts: &'static [Part]) -> Self {
        Check {
            id,
            subject: None,
            parts,
        }
    }

    pub(crate) fn of(self, subject: impl Into<String>) -> Self {
        Check {
            subject: Some(subject.into()),
            ..self
        }
    }

    pub(crate) fn ok(self, finding: impl Into<String>) -> Finding {
        self.finding(Verdict::Ok, finding.into(), None)
    }

    pub(crate) fn warning(self, finding: impl Into<String>, advice: impl Into<String>) -> Finding {
        self.finding(Verdict::Warning, finding.into(), Some(advice.into()))
    }

    pub(crate) fn failed(self, finding: impl Into<String>, advice: impl Into<String>) -> Finding {
        self.finding(Verdict::Failed, finding.into(), Some(advice.into()))
    }

    /// Fails if the command line named the subject, and warns otherwise.
    pub(crate) fn failed_if(
        self,
        is_named: bool,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        let verdict = match is_named {
            true => Verdict::Failed,
            false => Verdict::Warning,
        };
        self.finding(verdict, finding.into(), Some(advice.into()))
    }

    pub(crate) fn not_checked(
        self,
        reason: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        self.finding(Verdict::NotChecked, reason.into(), Some(advice.into()))
    }

    fn finding(self, result: Verdict, finding: String, advice: Option<String>) -> Finding {
        Finding {
            id: self.id,
            subject: self.subject,
            result,
            finding,
            advice,
            parts: self.parts,
        }
    }
}

/// Keeps the findings that concern one of the parts `asked` for. If none was, keeps all of them, and
/// what fails for a part becomes a warning, because that part may never run here.
pub(crate) fn select(findings: Vec<Finding>, asked: &[Part]) -> Vec<Finding> {
    let concerns = |finding: &Finding| {
        finding.parts.is_empty() || finding.parts.iter().any(|part| asked.contains(part))
    };
    if !asked.is_empty() {
        return findings.into_iter().filter(concerns).collect();
    }
    let mut findings = findings;
    for finding in &mut findings {
        if finding.result == Verdict::Failed && !finding.parts.is_empty() {
            finding.result = Verdict::Warning;
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_for_a_part_that_nobody_asked_for_is_a_warning() {
        let findings = || {
            vec![
                Check::new("a", &[Part::Agent, Part::Relay]).failed("f", "do"),
                Check::new("t", &[Part::Tunnel]).failed("f", "do"),
                Check::new("peer", &[]).failed("f", "do"),
            ]
        };
        let results = |asked: &[Part]| {
            let selected = select(findings(), asked);
            let result = |finding: Finding| (finding.id, finding.result);
            selected.into_iter().map(result).collect::<Vec<_>>()
        };
        use Verdict::{Failed, Warning};
        assert_eq!(
            results(&[]),
            [("a", Warning), ("t", Warning), ("peer", Failed)]
        );
        assert_eq!(results(&[Part::Relay]), [("a", Failed), ("peer", Failed)]);
        assert_eq!(results(&[Part::View]), [("peer", Failed)]);
    }
}

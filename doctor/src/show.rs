use crate::finding::{Finding, Verdict};

/// Writes findings for people: a line for each, below it what to do, and at the end how many there
/// are of each result.
pub(crate) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let subject = finding.subject.as_deref();
        let subject = subject.map_or(String::new(), |subject| format!(" {subject}"));
        let (word, id) = (word(finding.result), finding.id);
        text += &format!("{word:<WIDTH$}{id}{subject}: {}\n", finding.finding);
        if let Some(advice) = &finding.advice {
            text += &format!("{:WIDTH$}{advice}\n", "");
        }
    }
    let count = |wanted| {
        findings
            .iter()
            .filter(|found| found.result == wanted)
            .count()
    };
    text + &format!(
        "\nok: {}, warnings: {}, failed: {}, not checked: {}\n",
        count(Verdict::Ok),
        count(Verdict::Warning),
        count(Verdict::Failed),
        count(Verdict::NotChecked)
    )
}

/// The width of the column of results.
const WIDTH: usize = 13;

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failed => "FAILED",
        Verdict::NotChecked => "not checked",
    }
}

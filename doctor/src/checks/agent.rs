//! The reports of the configuration's running agent: paths that do not work, and settings of the kernel that it
//! cannot restore.

use crate::Part::Agent;
use crate::facts::Facts;
use crate::finding::{Check, Finding};

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let finding = |(path, reason): (&String, &String)| {
        let check = Check::new("agent.path", &[Agent]).of(format!("path {path}"));
        check.failed(
            format!("Path {path} does not work for the running agent: {reason}."),
            "Look at the output of `hawser status`, which changes when the path works.",
        )
    };
    let deviation = |(name, what): (&String, &String)| {
        let check = Check::new("agent.kernel", &[Agent]).of(name.clone());
        check.failed(
            format!("The running agent reports: {what}."),
            "Look at the output of `hawser status`, which changes when it is as it should be.",
        )
    };
    let paths = facts.unused_paths.iter().map(finding);
    paths
        .chain(facts.deviations.iter().map(deviation))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::machine;
    use crate::finding::Verdict::Failed;

    #[test]
    fn a_path_that_the_agent_does_not_use_is_named() {
        let mut facts = machine();
        assert_eq!(findings(&facts), []);
        let reason = "copies do not arrive".to_owned();
        facts.unused_paths.insert("2".to_owned(), reason.clone());
        let [finding] = findings(&facts).try_into().unwrap();
        assert_eq!(finding.result, Failed);
        assert!(
            finding.finding.starts_with("Path 2 ") && finding.finding.contains(&reason),
            "{}",
            finding.finding
        );
    }

    #[test]
    fn what_the_agent_cannot_restore_is_named() {
        let mut facts = machine();
        let what = "next hop 192.0.2.1 does not answer on eth0: check the cable".to_owned();
        let name = "next hop of path 2".to_owned();
        facts.deviations.insert(name.clone(), what.clone());
        let [finding] = findings(&facts).try_into().unwrap();
        assert_eq!((finding.result, finding.subject), (Failed, Some(name)));
        assert!(finding.finding.contains(&what), "{}", finding.finding);
    }
}

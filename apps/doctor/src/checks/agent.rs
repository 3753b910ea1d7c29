//! The paths that the running agent of the configuration reports as unused.

use crate::Part::Agent;
use crate::facts::Facts;
use crate::finding::{Check, Finding};

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let finding = |(path, reason): (&String, &String)| {
        let check = Check::new("agent.path", &[Agent]).of(format!("path {path}"));
        check.failed(
            format!("The running agent does not use path {path}: {reason}."),
            "Look at the output of `hawser status`, which changes when the path works.",
        )
    };
    facts.unused_paths.iter().map(finding).collect()
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
        facts.unused_paths.insert("2".to_owned(), reason);
        let [finding] = findings(&facts).try_into().unwrap();
        assert_eq!(finding.result, Failed);
        assert!(
            finding.finding.contains("path 2: copies do not arrive"),
            "{}",
            finding.finding
        );
    }
}

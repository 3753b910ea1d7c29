//! The decisions: what a fact means for the parts of Hawser, and what to do about it. No I/O.

mod agent;
mod interface;
mod peer;
mod ports;
mod settings;
mod system;

use crate::facts::Facts;
use crate::finding::Finding;

/// Returns the findings of all checks, always in the same order.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = system::findings(facts);
    findings.extend(interface::findings(facts));
    findings.extend(settings::findings(facts));
    findings.extend(agent::findings(facts));
    findings.extend(facts.ports.iter().map(ports::finding));
    if let Some(peer) = &facts.peer {
        findings.extend(peer::findings(peer));
    }
    findings
}

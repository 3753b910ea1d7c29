//! Cross-validation of XNC's constants: they are chosen on one half of the drives and judged on the
//! other, both ways.

use super::contender::{ORACLE, TUNED, XNC};
use super::drive::Set;
use super::outcome::Outcome;
use super::score::{Score, comparable, set_reduction};
use crate::summary::{Case, Metrics, mean};

/// Returns a case for each set of drives on which XNC was also run with other constants.
pub(super) fn cases(scores: &[Score]) -> Vec<Case> {
    let of_set = |set| case(scores, set);
    Set::ALL.into_iter().filter_map(of_set).collect()
}

fn case(scores: &[Score], set: Set) -> Option<Case> {
    let is_xnc = |score: &&Score| score.set == set && score.contender == XNC;
    let xnc = scores.iter().find(is_xnc)?;
    let comparable = scores.iter().filter(|score| comparable(score, xnc));
    let is_candidate = |score: &&Score| score.contender == XNC || TUNED.contains(&score.contender);
    let (candidates, others): (Vec<&Score>, Vec<&Score>) = comparable.partition(is_candidate);
    if candidates.len() < 2 {
        return None;
    }
    let chosen = [0, 1].map(|half| chosen(&candidates, half));

    let mut case = Case::new(&set.of("xnc-cross-validated"));
    case.set_param("set", set.name());
    case.set_param("candidates", candidates.len());
    case.set_param("chosen_on_even_drives", &*chosen[0].label);
    case.set_param("chosen_on_odd_drives", &*chosen[1].label);
    let [even, odd] = kept_out(chosen, Outcome::above_floor);
    let all = [&even[..], &odd].concat();
    case.metrics = Metrics::from([
        ("stall_above_floor_ratio", mean_of(&all)),
        ("stall_above_floor_even_drives_ratio", mean_of(&even)),
        ("stall_above_floor_odd_drives_ratio", mean_of(&odd)),
        (
            "redundancy_ratio",
            mean_of(&kept_out(chosen, Outcome::redundancy).concat()),
        ),
    ]);
    for other in others.into_iter().filter(|other| other.contender != ORACLE) {
        let theirs = other.by_half(Outcome::above_floor).concat();
        set_reduction(&mut case.metrics, &all, &theirs, &other.label);
    }
    Some(case)
}

/// Returns the candidate with the fewest stalls beyond the oracle's on a half of the drives, the first
/// one of equals.
fn chosen<'a>(candidates: &[&'a Score], half: usize) -> &'a Score {
    let stalls = |score: &Score| mean_of(&score.by_half(Outcome::above_floor)[half]);
    let best = candidates
        .iter()
        .min_by(|one, other| stalls(one).total_cmp(&stalls(other)));
    best.expect("there are candidates")
}

/// Returns a figure of each drive of each half, for what was chosen on the other half.
fn kept_out(chosen: [&Score; 2], figure: impl Fn(&Outcome) -> f64) -> [Vec<f64>; 2] {
    let [on_even, on_odd] = chosen.map(|score| score.by_half(&figure));
    let ([_, odd], [even, _]) = (on_even, on_odd);
    [even, odd]
}

fn mean_of(values: &[f64]) -> f64 {
    mean(values.iter().copied())
}

use super::table;
use crate::status::{ExperienceStatus, FlowExperience};
use std::fmt::Write;

/// Describes the newest report of each flow, and what was refused.
pub(super) fn describe(status: &ExperienceStatus) -> String {
    const COLUMNS: [&str; 8] = [
        "flow",
        "",
        "age",
        "frames",
        "late",
        "stalled",
        "delay",
        "wished rate",
    ];
    let flows = status.flows.iter();
    let rows = flows.flat_map(|(direction, flows)| flows.values().map(|flow| row(direction, flow)));
    let mut text = table(
        "reports of applications: the newest of each flow",
        &COLUMNS,
        rows.collect(),
    );
    if !status.refused.is_empty() {
        let counts = status.refused.iter();
        let counts: Vec<_> = counts
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        let _ = writeln!(
            text,
            "\nrefused reports of applications: {}",
            counts.join(", ")
        );
    }
    text
}

fn row(direction: &str, flow: &FlowExperience) -> Vec<String> {
    let newest = &flow.newest;
    let shown = |figure: Option<u32>, unit: &str| {
        figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure}{unit}"))
    };
    let rate = newest.rate_bps;
    vec![
        flow.flow.clone(),
        direction.to_owned(),
        format!("{:.1} s", flow.age_ms as f64 / 1e3),
        shown(newest.frames, ""),
        shown(newest.late, ""),
        shown(newest.stalled_ms, " ms"),
        shown(newest.delay_ms, " ms"),
        rate.map_or_else(
            || "-".to_owned(),
            |bps| format!("{:.1} Mb/s", bps as f64 / 1e6),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experience::Experience;
    use std::collections::BTreeMap;

    #[test]
    fn people_see_the_newest_report_of_each_flow() {
        let flow = FlowExperience {
            flow: "stage".to_owned(),
            at_unix_ms: 0,
            age_ms: 450,
            reports: 7,
            frames: 210,
            late: 9,
            stalled_ms: 0,
            newest: Experience {
                frames: Some(30),
                late: Some(3),
                rate_bps: Some(25_000_000),
                ..Experience::default()
            },
        };
        let status = ExperienceStatus {
            refused: BTreeMap::from([("flow".to_owned(), 2), ("line".to_owned(), 1)]),
            flows: BTreeMap::from([("received".to_owned(), BTreeMap::from([(3, flow)]))]),
            ..ExperienceStatus::default()
        };
        assert_eq!(
            describe(&status),
            "\nreports of applications: the newest of each flow\n\
             \x20flow              age  frames  late  stalled  delay  wished rate\n\
             stage  received  0.5 s      30     3        -      -    25.0 Mb/s\n\
             \n\
             refused reports of applications: 2 flow, 1 line\n"
        );
        assert_eq!(describe(&ExperienceStatus::default()), "");
    }
}

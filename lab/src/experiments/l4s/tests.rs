use super::*;
use crate::summary::Case;

fn case(name: &str, start_up: u64, stable: u64) -> Case {
    let times = Times {
        stable: Duration::from_secs(start_up),
        end: Duration::from_secs(start_up + stable),
    };
    let scenario = chosen(Some(name)).unwrap()[0];
    let trial = Trial {
        scenario,
        times,
        number: 0,
    };
    let outcome = trial.run(1).unwrap();
    score::collect(vec![(trial, outcome)])[0].case()
}

fn metric(case: &Case, name: &str) -> f64 {
    let value = case.metrics.get(name);
    value.unwrap_or_else(|| panic!("{name} was not measured: {case:?}"))
}

#[test]
fn the_same_seed_gives_the_same_case() {
    let run = || serde_json::to_string(&case("prague/cubic-1", 5, 1)).unwrap();
    assert_eq!(run(), run());
}

#[test]
fn prague_alone_rises_within_3_s_and_leaves_the_queue_short() {
    let case = case("prague/alone", 3, 3);
    assert!(metric(&case, "convergence_s") < 3.0, "{case:?}");
    assert!(metric(&case, "throughput_mbps") > 85.0, "{case:?}");
    assert!(metric(&case, "queue_delay_p99_ms") < 1.5, "{case:?}");
    assert_eq!(metric(&case, "undecodable_frames_ratio"), 0.0, "{case:?}");
    assert_eq!(metric(&case, "dropped_frames_ratio"), 0.0, "{case:?}");
}

#[test]
fn the_papers_pacing_makes_a_frame_take_30_ms() {
    let case = case("paper/alone", 3, 3);
    let latency = metric(&case, "latency_mean_ms");
    assert!((29.0..31.5).contains(&latency), "{case:?}");
}

#[test]
fn patterns_choose_cases() {
    let count = |pattern: &str| chosen(Some(pattern)).map_or(0, |cases| cases.len());
    assert_eq!(count("prague/alone"), 1);
    assert_eq!(count("prague/cubic-*,paper/cubic-*"), 6);
    assert_eq!(count("*"), 24);
    assert_eq!(count("nothing"), 0);
}

use super::frames::Frame;
use super::*;
use crate::experiment::matches;
use crate::summary::Case;

fn case(name: &str, start_up: u64, stable: u64) -> Case {
    let (trial, outcome) = outcome(name, start_up, stable);
    score::collect(vec![(trial, outcome)])[0].case()
}

fn outcome(name: &str, start_up: u64, stable: u64) -> (Trial, Outcome) {
    let times = Times {
        stable: Duration::from_secs(start_up),
        end: Duration::from_secs(start_up + stable),
    };
    let mut scenarios = Scenario::all().into_iter();
    let scenario = scenarios.find(|scenario| scenario.to_string() == name);
    let trial = Trial {
        scenario: scenario.unwrap(),
        times,
        number: 0,
    };
    (trial, trial.run(1).unwrap())
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
fn what_str0m_draws_at_random_hardly_changes_a_case() {
    let [one, two] = [(); 2].map(|()| metric(&case("gcc/cubic-1", 5, 1), "throughput_mbps"));
    assert!((one / two - 1.0).abs() < 0.1, "{one} {two}");
}

#[test]
fn prague_alone_rises_within_3_s_and_leaves_the_queue_short() {
    let case = case("prague/alone", 3, 3);
    assert!(metric(&case, "convergence_s") < 3.0, "{case:?}");
    assert!(metric(&case, "throughput_mbps") > 85.0, "{case:?}");
    assert!(metric(&case, "queue_delay_p99_ms") <= 1.0, "{case:?}");
    assert_eq!(metric(&case, "undecodable_frames_ratio"), 0.0, "{case:?}");
    assert_eq!(metric(&case, "dropped_frames_ratio"), 0.0, "{case:?}");
}

#[test]
fn beside_cubic_flows_the_queue_of_l4s_stays_below_1_ms() {
    let case = case("prague/cubic-3", 7, 3);
    assert!(metric(&case, "target_mbps") > 89.0, "{case:?}");
    assert!(metric(&case, "queue_delay_p99_ms") <= 1.0, "{case:?}");
    let beyond = metric(&case, "latency_beyond_pacing_p99_ms");
    assert!(beyond <= 12.0, "{case:?}");
}

#[test]
fn a_prague_flow_beside_prague_gets_its_share() {
    let case = case("prague/prague-1", 10, 5);
    let least = metric(&case, "competitor_min_mbps");
    assert!(least > 40.0, "{case:?}");
    assert!(metric(&case, "target_mbps") > 40.0, "{case:?}");
}

#[test]
fn beside_cubic_in_fq_codel_each_flow_gets_its_share() {
    let case = case("prague/fq-codel-cubic-3", 10, 5);
    let ours = metric(&case, "target_mbps");
    assert!((15.0..=26.0).contains(&ours), "{case:?}");
    assert!(metric(&case, "competitor_min_mbps") > 20.0, "{case:?}");
}

#[test]
fn varying_delays_do_not_lower_pragues_rate() {
    let case = case("prague/jitter", 3, 3);
    assert!(metric(&case, "target_mbps") > 80.0, "{case:?}");
    assert_eq!(metric(&case, "undecodable_frames_ratio"), 0.0, "{case:?}");
}

#[test]
fn random_loss_without_a_queue_costs_little_rate() {
    for name in ["loss-1", "loss-unmarked", "loss-fq-codel"] {
        let case = case(&format!("prague/{name}"), 12, 3);
        assert!(metric(&case, "target_mbps") > 80.0, "{case:?}");
        assert!(metric(&case, "undecodable_frames_ratio") < 0.02, "{case:?}");
    }
}

#[test]
fn pauses_delay_frames_and_the_rate_returns() {
    let case = case("prague/pauses", 3, 6);
    assert!(metric(&case, "target_mbps") > 50.0, "{case:?}");
    assert!(metric(&case, "latency_max_ms") > 50.0, "{case:?}");
    assert!(metric(&case, "undecodable_frames_ratio") < 0.05, "{case:?}");
}

#[test]
fn a_route_that_becomes_longer_costs_a_second() {
    let case = case("prague/detour", 3, 9);
    assert!(metric(&case, "target_mbps") > 75.0, "{case:?}");
    // 27 of 270 frames.
    assert!(metric(&case, "reduced_frames_ratio") < 0.1, "{case:?}");
    assert!(metric(&case, "late_frames_ratio") < 0.1, "{case:?}");
    assert_eq!(metric(&case, "undecodable_frames_ratio"), 0.0, "{case:?}");
}

#[test]
fn the_papers_pacing_makes_a_frame_take_30_ms() {
    let case = case("paper/alone", 3, 3);
    let latency = metric(&case, "latency_mean_ms");
    assert!((29.0..31.5).contains(&latency), "{case:?}");
}

#[test]
fn webrtc_alone_delivers_every_frame_and_its_rate_rises() {
    let (_, outcome) = outcome("gcc/alone", 2, 2);
    let (last, first) = (outcome.frames.len() - 15, &outcome.frames[0]);
    assert_eq!(first.target.mbps(), 12.5);
    assert!(
        outcome.frames[last].target > first.target,
        "{:?}",
        outcome.frames[last]
    );
    assert!(outcome.frames[..last].iter().all(Frame::is_whole));
    let sent: u64 = outcome.frames[..last]
        .iter()
        .map(|frame| frame.size.0)
        .sum();
    let received = outcome.samples.last().unwrap().media.0;
    assert!(
        received > sent,
        "{received} bytes received of {sent} in frames"
    );
}

#[test]
fn webrtc_sends_again_what_is_lost() {
    let (_, outcome) = outcome("gcc/loss-1", 2, 2);
    let sent = outcome.counters.traffic;
    let share = sent.repeated as f64 / sent.packets as f64;
    assert!((0.005..0.02).contains(&share), "{sent:?}");
    let frames = &outcome.frames[..outcome.frames.len() - 15];
    let whole = frames.iter().filter(|frame| frame.is_whole()).count();
    assert!(whole as f64 > 0.9 * frames.len() as f64, "{whole} frames");
}

#[test]
fn patterns_choose_cases() {
    let count = |pattern: &str| {
        let names = L4s::default()
            .cases()
            .into_iter()
            .map(|case| case.to_string());
        names.filter(|name| matches(pattern, name)).count()
    };
    assert_eq!(count("prague/alone"), 1);
    assert_eq!(count("prague/cubic-*,paper/cubic-*"), 6);
    assert_eq!(count("gcc/*"), 24);
    assert_eq!(count("prague/loss-*"), 8);
    assert_eq!(count("*"), 72);
    assert_eq!(count("nothing"), 0);
}

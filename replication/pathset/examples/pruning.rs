//! Prints the cost and the benefit of path pruning in virtual time:
//! `cargo run --release -p hawser-pathset --example pruning`, with `-- --policies` for every policy
//! change.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "an example prints and has arguments"
)]

#[path = "../tests/network/mod.rs"]
mod network;

use hawser_pathset::{Evidence, EvidenceConfig, Successive, SuccessiveConfig};
use hawser_units::PathSet;
use network::{Judge, LEVELS, Network, table_1, two_needed};
use std::time::Duration;

const VARIATION: Duration = Duration::from_secs(40);
const END: Duration = Duration::from_secs(60);

fn main() {
    let verbose = std::env::args().any(|arg| arg == "--policies");
    println!(
        "The five paths of Table I, starting with all of them: 40 s of variation, then 20 s without.\n"
    );
    println!("                      variation                  then");
    println!(
        "policy      level  seed  copies  frames damaged  copies  frames damaged  final paths"
    );
    for (level, packets) in LEVELS {
        for seed in 1..=3 {
            for policy in ["replicate", "successive", "evidence"] {
                table_1_with(policy, level, packets, seed, verbose);
            }
        }
    }
    println!(
        "\nA path that the flow needs is cut for 5 s. Time from the end of the cut until every packet takes it again:\n"
    );
    println!("packets/s  seconds, seeds 1 to 5");
    for packets_per_frame in [67, 133, 267, 400] {
        let seconds = (1..=5).map(|seed| format!("{:.2}", restored_after(packets_per_frame, seed)));
        println!(
            "{:>9}  {}",
            packets_per_frame * 30,
            seconds.collect::<Vec<_>>().join("  ")
        );
    }
}

fn evidence(paths: PathSet, packets_per_frame: u64) -> Judge {
    let mut judge = Evidence::new(EvidenceConfig::default(), paths);
    judge.handle_frame_size(packets_per_frame as f64);
    Judge::Evidence(Box::new(judge))
}

fn table_1_with(policy: &str, level: &str, packets_per_frame: u64, seed: u64, verbose: bool) {
    let paths = PathSet::from_bits(0b11111);
    let judge = match policy {
        "successive" => Judge::Successive(Successive::new(SuccessiveConfig::default(), paths)),
        "evidence" => evidence(paths, packets_per_frame),
        _ => Judge::None,
    };
    let mut network = Network::new(table_1(VARIATION), packets_per_frame, judge, seed);
    network.run_to(END);
    let arrived = END - Duration::from_secs(1);
    println!(
        "{policy:<10}  {level:<5}  {seed:>4}  {:>6.2}  {:>12.1} %  {:>6.2}  {:>12.1} %  {:05b}",
        network.cost(Duration::ZERO, VARIATION),
        network.damaged_frames(Duration::ZERO, VARIATION) * 100.0,
        network.cost(VARIATION, END),
        network.damaged_frames(VARIATION, arrived) * 100.0,
        network.code(),
    );
    if verbose {
        for (at, code, reason) in network.policies() {
            println!("    {:>6.2} s  {code:05b}  {reason}", at.as_secs_f64());
        }
    }
}

fn restored_after(packets_per_frame: u64, seed: u64) -> f64 {
    let (cut, back) = (Duration::from_secs(4), Duration::from_secs(9));
    let judge = evidence(PathSet::from_bits(0b111), packets_per_frame);
    let mut network = Network::new(two_needed(cut, back), packets_per_frame, judge, seed);
    network.run_to(back + Duration::from_secs(5));
    let used = network
        .policies()
        .into_iter()
        .find(|(at, code, _)| *at > back && code & 1 == 1);
    used.map_or(f64::NAN, |(at, ..)| (at - back).as_secs_f64())
}

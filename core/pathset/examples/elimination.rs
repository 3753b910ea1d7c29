//! What path elimination costs and what it spares, in virtual time: `cargo run --release -p hawser-pathset --example elimination`.
//!
//! The five paths of Table I of Qian et al. under variation for 40 s, then 20 s without, beginning with all paths.
//! With `-- --policies`, every change of the policy.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "an example prints and has arguments"
)]

#[path = "../tests/network/mod.rs"]
mod network;

use hawser_pathset::{Evidence, EvidenceConfig, Successive, SuccessiveConfig};
use hawser_units::PathSet;
use network::{Judge, LEVELS, Network, table_1};
use std::time::Duration;

const VARIATION: Duration = Duration::from_secs(40);
const END: Duration = Duration::from_secs(60);
const ALL: PathSet = PathSet::from_bits(0b11111);

fn main() {
    let verbose = std::env::args().any(|arg| arg == "--policies");
    println!(
        "policy      level  seed  copies per packet  frames damaged  then copies  frames damaged  paths"
    );
    for (level, packets) in LEVELS {
        for seed in 1..=3 {
            for policy in ["replicate", "successive", "evidence"] {
                let judge = match policy {
                    "successive" => Judge::Successive(Successive::new(SuccessiveConfig::default(), ALL)),
                    "evidence" => {
                        let mut judge = Evidence::new(EvidenceConfig::default(), ALL);
                        judge.handle_frame_size(packets as f64);
                        Judge::Evidence(Box::new(judge))
                    }
                    _ => Judge::None,
                };
                let mut network = Network::new(table_1(VARIATION), packets, judge, seed);
                network.run_to(END);
                let arrived = END - Duration::from_secs(1);
                println!(
                    "{policy:<10}  {level:<5}  {seed:>4}  {:>17.2}  {:>12.1} %  {:>11.2}  {:>12.1} %  {:05b}",
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
        }
    }
}

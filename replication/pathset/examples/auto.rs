//! Prints how the judge of the mode `auto` fares in random networks, in virtual time:
//! `cargo run --release -p hawser-pathset --example auto -- FIRST_SEED LAST_SEED`, with `--policies`
//! for every policy change, and with `--outages` in networks whose paths fail one after another.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "an example prints and has arguments"
)]

#[path = "../tests/network/mod.rs"]
mod network;

use hawser_pathset::{Evidence, EvidenceConfig};
use network::outage::{CALM, Outages};
use network::random::{CHANGE, END, Fixed, PACKETS_PER_FRAME, Scene, best};
use network::{Judge, Network};
use std::time::Duration;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let verbose = std::env::args().any(|arg| arg == "--policies");
    let (first, last) = (
        numbers.first().copied().unwrap_or(1),
        numbers.get(1).copied().unwrap_or(20),
    );
    if std::env::args().any(|arg| arg == "--outages") {
        print_outages(first, last, verbose);
        return;
    }
    let mut sums = [[0.0; 6]; 2];
    let mut count = 0.0;
    for seed in first..=last {
        let scene = Scene::new(seed);
        let fixed = scene.fixed();
        count += 1.0;
        for (kind, sum) in ["auto", "evidence"].iter().zip(&mut sums) {
            let judge = |paths| match *kind {
                "auto" => Evidence::auto(EvidenceConfig::default(), paths),
                _ => Evidence::new(EvidenceConfig::default(), paths),
            };
            let mut judge = judge(scene.paths());
            judge.handle_frame_size(PACKETS_PER_FRAME as f64);
            let network = scene.run(Judge::Evidence(Box::new(judge)));
            let [before, after] = [(0, s(15), CHANGE), (1, s(42), s(49))]
                .map(|(period, from, to)| is_good(&network, &fixed, period, from, to));
            let changes = network
                .policies()
                .iter()
                .filter(|(at, ..)| *at > s(30))
                .count()
                * 3;
            let row = [
                f64::from(before),
                f64::from(after),
                changes as f64,
                network.damaged_packets(s(1), s(49)) * 100.0,
                network.cost(s(0), END),
                network.probes(s(0), END) * 100.0,
            ];
            sum.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
            if !before || !after || changes > 8 || verbose {
                println!(
                    "seed {seed} {kind}: {row:.2?} best {:?} {:?}",
                    best(&fixed, 0),
                    best(&fixed, 1)
                );
                if verbose {
                    println!("{scene:?}");
                    for fixed in &fixed {
                        println!(
                            "   {:04b} {:.5} {:.5}",
                            fixed.code, fixed.damage[0], fixed.damage[1]
                        );
                    }
                    for (at, code, reason) in network.policies() {
                        println!("    {:>6.2} s  {code:04b}  {reason}", at.as_secs_f64());
                    }
                }
            }
        }
    }
    println!("       good before, good after, changes/min after 30 s, damaged %, copies, probes %");
    for (kind, sum) in ["auto", "evidence"].iter().zip(&sums) {
        println!("{kind:<9} {:.3?}", sum.map(|sum| sum / count));
    }
}

/// Returns whether the flow took a set as good and as small as the best one, for most of the time.
fn is_good(
    network: &Network,
    fixed: &[Fixed],
    period: usize,
    from: Duration,
    to: Duration,
) -> bool {
    let (size, damage) = best(fixed, period);
    if damage > 0.9 {
        return true;
    }
    let code = network.code_mostly(from, to);
    let taken = fixed.iter().find(|fixed| fixed.code == code);
    let is_as_good = taken.is_some_and(|fixed| fixed.damage[period] <= damage * 2.5);
    is_as_good && code.count_ones() as usize <= size
}

/// Prints how modes fare in the lab's network with outages, and in random ones.
fn print_outages(first: u64, last: u64, verbose: bool) {
    println!("mode, stalled %, the most stalled %, copies, changes/min, probes %");
    println!("the lab's network:");
    print_modes(&[Outages::of_lab()], verbose);
    let random: Vec<_> = (first..=last).map(Outages::new).collect();
    println!("seeds {first} to {last}:");
    print_modes(&random, verbose);
}

fn print_modes(networks: &[Outages], verbose: bool) {
    for kind in ["single", "replicate", "evidence", "auto"] {
        let rows: Vec<_> = networks
            .iter()
            .map(|outages| {
                let network = run_outages(outages, kind);
                let row = [
                    network.stalled(CALM, outages.end) * 100.0,
                    network.cost(CALM, outages.end),
                    network.changes(CALM, outages.end) as f64 * 60.0
                        / (outages.end - CALM).as_secs_f64(),
                    network.probes(CALM, outages.end) * 100.0,
                ];
                if verbose && kind == "auto" {
                    println!("{outages:?}: {row:.2?}");
                    for (at, code, reason) in network.policies() {
                        println!("    {:>6.2} s  {code:05b}  {reason}", at.as_secs_f64());
                    }
                }
                row
            })
            .collect();
        let mean =
            |column: usize| rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64;
        let most = rows.iter().map(|row| row[0]).fold(0.0, f64::max);
        println!(
            "{kind:<9} {:6.2} {most:6.2} {:5.2} {:6.1} {:5.2}",
            mean(0),
            mean(1),
            mean(2),
            mean(3)
        );
    }
}

fn run_outages(outages: &Outages, kind: &str) -> Network {
    let (config, paths) = (EvidenceConfig::default(), outages.paths());
    let judged = |judge| Judge::Evidence(Box::new(judge));
    match kind {
        "single" => outages.run(Judge::None, 0b1),
        "replicate" => outages.run(Judge::None, paths.bits()),
        "evidence" => outages.run(judged(Evidence::new(config, paths)), paths.bits()),
        _ => outages.run(judged(Evidence::auto(config, paths)), 0b1),
    }
}

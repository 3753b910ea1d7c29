//! Benchmark of records that keep the fields of later versions, at the number of flows that one
//! controller should manage: `cargo bench -p hawser-controller --bench records`.
//!
//! It compares the records of flows as the controller reads and writes them with the same records
//! whose unknown fields are dropped.

#[allow(dead_code, reason = "the controller also takes values out of records")]
#[path = "../src/record/extended.rs"]
mod extended;

use extended::{Extended, Later};
use hawser_model::resource::Flow;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

const FLOWS: usize = 100_000;

/// The fields of the controller's record of a flow.
#[derive(Serialize, Deserialize)]
struct Keeping {
    flow: Extended<Flow>,
    number: u16,
    #[serde(default)]
    received: bool,
    #[serde(default)]
    changed_in: Option<u64>,
    #[serde(flatten)]
    later: Later,
}

#[derive(Serialize, Deserialize)]
struct Dropping {
    flow: Flow,
    number: u16,
    #[serde(default)]
    received: bool,
    #[serde(default)]
    changed_in: Option<u64>,
}

fn main() {
    let records: Vec<Vec<u8>> = (0..FLOWS).map(record).collect();
    println!("{FLOWS} records of flows");
    // The first ones stay, so that the memory of the second ones is not theirs.
    let dropping = measure::<Dropping>("that drop unknown fields", &records);
    let keeping = measure::<Keeping>("that keep unknown fields", &records);
    black_box((dropping, keeping));
}

fn record(number: usize) -> Vec<u8> {
    let [high, middle, low] = [16, 8, 0].map(|bits| number >> bits & 255);
    let record = json!({
        "flow": {
            "name": format!("flow-{number}"), "tenant": "lab",
            "ingress": format!("node-{}", number / 10), "egress": format!("node-{}", number / 10 + 1),
            "select": { "destination": format!("10.{high}.{middle}.{low}/32") },
            "mode": "evidence",
            "trigger": { "select": { "destination": "192.0.2.0/24" } },
        },
        "number": number % 1024,
    });
    record.to_string().into_bytes()
}

/// Prints the time and the memory to decode all records, and the time to encode them. Returns the
/// records.
fn measure<T: Serialize + DeserializeOwned>(name: &str, records: &[Vec<u8>]) -> Vec<T> {
    let (before_kib, start) = (resident_kib(), Instant::now());
    let decoded: Vec<T> = records
        .iter()
        .map(|record| serde_json::from_slice(record).expect("a record"))
        .collect();
    let decoding = start.elapsed() / u32::try_from(FLOWS).expect("small");
    let bytes = (resident_kib() - before_kib) * 1024 / FLOWS;
    let start = Instant::now();
    for record in &decoded {
        black_box(serde_json::to_vec(record).expect("JSON"));
    }
    let encoding = start.elapsed() / u32::try_from(FLOWS).expect("small");
    println!(
        "  {name}: decoded in {decoding:.2?} each, encoded in {encoding:.2?} each, {bytes} bytes of memory each"
    );
    decoded
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.expect("the kernel reports it")
}

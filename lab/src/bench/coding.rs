use super::{INNER_BYTES, case, median, nanoseconds};
use crate::summary::{Case, Summary};
use anyhow::{Result, ensure};
use hawser_coding::kernel::Kernel;
use hawser_coding::{Config, Decoder, encode, encode_with};
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUNDS: usize = 1001;

/// Packets of a run: few, so that most runs end before another process gets the CPU.
const PACKETS: u32 = 50;

/// Packets of a range: the paper's r (section 4.4.2).
const RANGE: u8 = 10;

/// The targets of encoding a packet, by kernel.
const ENCODE_LIMITS_NS: [(&str, f64); 2] = [("avx2", 400.0), ("gfni512", 105.0)];

/// The length of a cache line in bytes, and of the longest vector.
const CACHE_LINE: usize = 64;

pub(super) fn run(summary: &mut Summary) -> Result<()> {
    let packets: Vec<Vec<u8>> = (0..RANGE)
        .map(|n| vec![n; CACHE_LINE + INNER_BYTES])
        .collect();
    // In the tunnel, packets begin wherever those before them in their memory end.
    let range: Vec<&[u8]> = packets.iter().map(|packet| at(packet, 22)).collect();
    let aligned: Vec<&[u8]> = packets.iter().map(|packet| at(packet, 0)).collect();
    encoding(&range, &aligned, summary);
    decoding(&range, summary)?;
    originals(&range, summary)
}

/// Returns a packet in `memory` that begins so many bytes after the beginning of a cache line.
fn at(memory: &[u8], offset: usize) -> &[u8] {
    let start = memory.as_ptr().align_offset(CACHE_LINE);
    &memory[(start + offset) % CACHE_LINE..][..INNER_BYTES]
}

/// The figures of a kernel, in nanoseconds per packet.
#[derive(Default)]
struct Encoding {
    coded: Vec<f64>,
    coded_aligned: Vec<f64>,
    sums: Vec<f64>,
    products: Vec<f64>,
}

/// Measures the encoding of a packet with each available kernel: of packets that begin anywhere in
/// a cache line, and of packets that begin with one. Measures the sum of products alone too.
fn encoding(range: &[&[u8]], aligned: &[&[u8]], summary: &mut Summary) {
    let kernels = Kernel::available();
    let mut figures: Vec<Encoding> = kernels.iter().map(|_| Encoding::default()).collect();
    let (mut symbol, mut sum) = (Vec::new(), vec![0; INNER_BYTES]);
    let mut seed = 0;
    let coefficients: Vec<u8> = (1..=RANGE).collect();
    for _ in 0..ROUNDS {
        for (kernel, figures) in kernels.iter().zip(&mut figures) {
            let mut encode = |range: &[&[u8]]| {
                per_packet(PACKETS, || {
                    symbol.clear();
                    seed += 1;
                    encode_with(*kernel, black_box(range), seed, &mut symbol);
                })
            };
            figures.coded.push(encode(range));
            figures.coded_aligned.push(encode(aligned));
            figures.sums.push(per_packet(PACKETS, || {
                kernel.dot(black_box(&mut sum), &coefficients, black_box(range));
            }));
            figures.products.push(per_packet(PACKETS, || {
                kernel.mul_add(black_box(&mut sum), 0x8e, black_box(range[0]));
            }));
        }
    }
    let cases = kernels.into_iter().zip(figures);
    let cases = cases.map(|(kernel, figures)| encoding_case(kernel, figures));
    summary.cases.extend(cases);
}

fn encoding_case(kernel: Kernel, figures: Encoding) -> Case {
    let limit = ENCODE_LIMITS_NS
        .iter()
        .find(|(name, _)| *name == kernel.name());
    let limit = limit.map(|(_, limit)| ("ns_per_packet", *limit));
    let name = format!("coding/encode-{}", kernel.name());
    let mut case = case(&name, limit.as_slice());
    case.set_param("range_packets", RANGE);
    for (name, figures) in [
        ("ns_per_packet", figures.coded),
        ("aligned_ns_per_packet", figures.coded_aligned),
        ("sum_ns_per_packet", figures.sums),
        ("multiply_add_ns_per_packet", figures.products),
    ] {
        case.metrics.set(name, median(figures));
    }
    case
}

/// Measures the decoding of all packets of a range from the same number of coded packets.
fn decoding(range: &[&[u8]], summary: &mut Summary) -> Result<()> {
    let coded = coded(range);
    let mut decoder = Decoder::new(Config::default());
    let mut start = 0;
    let figures = (0..ROUNDS).map(|_| {
        per_packet(PACKETS / u32::from(RANGE), || {
            decode(&mut decoder, start, &coded);
            start += u64::from(RANGE);
        })
    });
    let figure = median(figures.collect()) / f64::from(RANGE);
    let determined = decoder.counts().determined;
    ensure!(
        determined == start,
        "only {determined} of {start} lost packets were recovered"
    );
    let mut case = case("coding/decode", &[]);
    case.set_param("range_packets", RANGE);
    case.metrics.set("ns_per_packet", figure);
    summary.cases.push(case);
    Ok(())
}

/// Returns as many coded packets of a range as it has packets, with their seeds.
fn coded(range: &[&[u8]]) -> Vec<(u64, Vec<u8>)> {
    (0..u64::from(RANGE))
        .map(|seed| {
            let mut symbol = Vec::new();
            encode(range, seed, &mut symbol);
            (seed, symbol)
        })
        .collect()
}

/// Decodes the range of packets that begins with number `start`.
fn decode(decoder: &mut Decoder, start: u64, coded: &[(u64, Vec<u8>)]) {
    for (seed, symbol) in coded {
        decoder
            .handle_coded(start, coded.len(), *seed, symbol)
            .expect("the symbol is valid");
    }
    while let Some(packet) = decoder.poll_packet() {
        black_box(packet);
    }
}

/// Measures the cost of a packet that was not lost.
fn originals(range: &[&[u8]], summary: &mut Summary) -> Result<()> {
    let mut decoder = Decoder::new(Config::default());
    let mut next = 0;
    let figures = (0..ROUNDS).map(|_| {
        per_packet(PACKETS, || {
            decoder
                .handle_original(next, black_box(range[0]))
                .expect("the packet is new");
            next += 1;
        })
    });
    let figure = median(figures.collect());
    ensure!(
        decoder.counts().originals == next,
        "the decoder did not count every packet as new"
    );
    let mut case = case("coding/original", &[]);
    case.metrics.set("ns_per_packet", figure);
    summary.cases.push(case);
    Ok(())
}

/// Returns the mean duration of `work` in nanoseconds.
fn per_packet(times: u32, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..times).for_each(|_| work());
    let total: Duration = start.elapsed();
    nanoseconds(total) / f64::from(times)
}

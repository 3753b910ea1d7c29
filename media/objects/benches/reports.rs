//! Benchmarks what the reports of a viewer cost a publisher, true ones and others:
//! `cargo bench -p hawser-objects --features fuzzing --bench reports`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::print_stdout,
    reason = "a benchmark reads the clock and prints"
)]

use hawser_congestion::{Bounds, Prague, PragueConfig};
use hawser_objects::checks::{HostileViewer, TRACKS, publication};
use hawser_objects::{EncodedLayer, LayerContent, Publication};
use hawser_packets::feedback::{Age, Arrival, Block, ClockStamp, Feedback, Totals};
use hawser_packets::media::{ObjectId, Packet, PacketId, VERSION};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// The rate at which a viewer is served, 40,000 packets a second.
const RATE: u64 = 400_000_000;

/// The time between frames, and the bytes of each.
const FRAME: Duration = Duration::from_millis(25);
const BYTES: usize = 1_150_000;

/// The frames of which the reports are measured, after as many to begin with.
const FRAMES: u32 = 40;

/// The time between two polls of outgoing packets.
const STEP: Duration = Duration::from_micros(100);

/// The time from the departure of a packet to the arrival of a report that names it.
const ROUND_TRIP: Duration = Duration::from_millis(10);

/// Makes the reports of a step from the packets that arrived in it.
type MakeReports = fn(&mut Reporter, &[PacketId]) -> Vec<Vec<Block>>;

/// The packets that have arrived at a viewer.
#[derive(Default)]
struct Reporter {
    unreported: VecDeque<PacketId>,
    reported: Vec<PacketId>,
    /// The first packets, which are reported again and again.
    first: Vec<PacketId>,
}

/// The number of runs, of which the fastest counts: other load only slows a run down.
const ATTEMPTS: usize = 5;

/// The cost of reports.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    took: Duration,
    reports: u32,
    bytes: usize,
    refused: u64,
}

fn main() {
    println!(
        "                   us a report  bytes  ns a byte  reports/s read  refused/s  % of a processor"
    );
    let cases: [(&str, MakeReports); 6] = [
        ("true", |reporter, arrived| reporter.true_reports(arrived)),
        ("each and 2 others", |reporter, arrived| {
            let mut reports = reporter.true_reports(arrived);
            let others = 2 * reports.len();
            let repeated = reporter.repeated(arrived).into_iter();
            reports.extend(repeated.cycle().take(others));
            reports
        }),
        ("repeated", |reporter, arrived| reporter.repeated(arrived)),
        ("packets not sent", |_, arrived| packets_not_sent(arrived)),
        ("objects not sent", |_, _| vec![objects_not_sent()]),
        ("empty", |_, _| vec![Vec::new()]),
    ];
    for (name, make_reports) in cases {
        let costs = (0..ATTEMPTS).map(|_| measure(make_reports));
        let Cost {
            took,
            reports,
            bytes,
            refused,
        } = costs.min().unwrap_or_default();
        let nanos = took.as_nanos() as f64;
        let seconds = (FRAMES * FRAME).as_secs_f64();
        println!(
            "{name:17} {:12.1} {:6} {:10.1} {:15.0} {:10.0} {:17.2}",
            nanos / 1e3 / f64::from(reports),
            bytes / reports as usize,
            nanos / bytes as f64,
            f64::from(reports) / seconds,
            refused as f64 / seconds,
            nanos / 1e7 / seconds,
        );
    }
}

/// Returns the cost of the reports of a second, after a second.
fn measure(make_reports: MakeReports) -> Cost {
    let rate = Bitrate::from_bps(RATE);
    let config = PragueConfig {
        bounds: Bounds::new(rate, rate, rate),
        ..PragueConfig::default()
    };
    let control = move |now| Box::new(Prague::new(config, now)) as _;
    let mut publication = publication(ByteSize(20_000_000), Box::new(control));
    let mut now = Instant::from_nanos(1_000_000_000);
    let address = ([192, 0, 2, 1], 1).into();
    let mut viewer = HostileViewer::join(&mut publication, now, address, &TRACKS).expect("room");
    let mut reporter = Reporter::default();
    let mut on_the_way = VecDeque::new();
    let content = vec![0; BYTES];
    let mut cost = Cost::default();
    for frame in 0..2 * FRAMES {
        let layer = EncodedLayer {
            alias: TRACKS[0],
            layer: 0,
            content: LayerContent::Whole(&content),
        };
        let published = publication.publish(now, now, &[layer]);
        published.expect("the layers ascend");
        if frame == FRAMES {
            cost = Cost::default();
        }
        for _ in 0..FRAME.as_micros() / STEP.as_micros() {
            now += STEP;
            let sent = transmit(&mut publication, now);
            on_the_way.extend(sent.into_iter().map(|id| (now + ROUND_TRIP, id)));
            let arrived = on_the_way.partition_point(|(at, _)| *at <= now);
            let arrived: Vec<PacketId> = on_the_way.drain(..arrived).map(|(_, id)| id).collect();
            for blocks in make_reports(&mut reporter, &arrived) {
                let datagram = viewer.report(&report(now, blocks), 0);
                let start = std::time::Instant::now();
                let taken = publication.handle_datagram(now, address, &datagram);
                cost.took += start.elapsed();
                match taken {
                    Ok(()) => {
                        cost.bytes += datagram.len();
                        cost.reports += 1;
                    }
                    Err(_) => cost.refused += 1,
                }
            }
            publication.handle_timeout(now);
            while publication.poll_event().is_some() {}
        }
    }
    cost
}

/// Returns the packets of media that leave.
fn transmit(publication: &mut Publication, now: Instant) -> Vec<PacketId> {
    let sent = std::iter::from_fn(|| publication.poll_transmit(now));
    let media = sent.filter(|outgoing| outgoing.datagram[0] == VERSION);
    let ids = media.map(|outgoing| Packet::parse(&outgoing.datagram).expect("media").header.id);
    ids.collect()
}

fn report(now: Instant, blocks: Vec<Block>) -> Feedback {
    Feedback {
        clock: ClockStamp {
            sent: now,
            echo: None,
        },
        totals: Totals::default(),
        pose: None,
        blocks,
    }
}

impl Reporter {
    /// Reports each packet twice, 64 packets for the first time in a report.
    fn true_reports(&mut self, arrived: &[PacketId]) -> Vec<Vec<Block>> {
        self.unreported.extend(arrived);
        let mut reports = Vec::new();
        while self.unreported.len() >= 64 {
            let new: Vec<PacketId> = self.unreported.drain(..64).collect();
            let again = std::mem::replace(&mut self.reported, new.clone());
            let named: Vec<PacketId> = again.into_iter().chain(new).collect();
            reports.push(blocks(&named));
        }
        reports
    }

    /// Names the first 500 packets again and again.
    fn repeated(&mut self, arrived: &[PacketId]) -> Vec<Vec<Block>> {
        let more = 500usize.saturating_sub(self.first.len());
        self.first.extend(arrived.iter().take(more));
        vec![blocks(&self.first)]
    }
}

/// Names packets of the object that leaves which do not exist.
fn packets_not_sent(arrived: &[PacketId]) -> Vec<Vec<Block>> {
    let last = arrived.last();
    let beyond = last.map(|id| {
        let beyond = (0..500).map(|at| PacketId {
            object: id.object,
            index: 20_000 + at,
        });
        blocks(&beyond.collect::<Vec<_>>())
    });
    beyond.into_iter().collect()
}

/// Names packets of many objects which do not exist.
fn objects_not_sent() -> Vec<Block> {
    let objects = (0..54).map(|group| PacketId {
        object: ObjectId {
            alias: TRACKS[0],
            group: 1_000_000 + group,
            object: 0,
            layer: 0,
        },
        index: 0,
    });
    objects.flat_map(|id| blocks(&[id])).collect()
}

/// Returns blocks of packets in ascending order.
fn blocks(packets: &[PacketId]) -> Vec<Block> {
    let arrival = Some(Arrival {
        ecn: Ecn::Ect1,
        age: Age::of(Duration::ZERO),
    });
    let mut blocks: Vec<Block> = Vec::new();
    for id in packets {
        match blocks.last_mut() {
            Some(block)
                if block.object == id.object
                    && usize::from(id.index) == usize::from(block.base) + block.packets.len() =>
            {
                block.packets.push(arrival);
            }
            _ => blocks.push(Block {
                object: id.object,
                base: id.index,
                packets: vec![arrival],
            }),
        }
    }
    blocks
}

use super::{case, median, nanoseconds, transit_frame};
use crate::summary::{Case, Summary};
use anyhow::{Result, ensure};
use hawser_lab_bpf::{Accepting, DedupBench};
use hawser_replication_bpf::{Receiver, ReceiverOptions, Verdict};
use hawser_shim::{
    Addresses, Cover, DEFAULT_PORT, Encapsulation, KeySlot, SealKey, SealRing, Shim,
};
use hawser_units::{FlowId, PathId, PathSet};
use hawser_wire::Key;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const ROUNDS: usize = 51;

/// Packets of a run: fewer than the capacity of an arrival ring and of the list of prepared
/// packets.
const PACKETS: u32 = 50_000;

/// The measured kind of packet: outer header and tag.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    is_ipv6: bool,
    tagged: Option<Cover>,
    duplicate_limit_ns: Option<f64>,
    accept_limit_ns: Option<f64>,
}

const PLAIN: Form = Form {
    name: "",
    is_ipv6: false,
    tagged: None,
    duplicate_limit_ns: None,
    accept_limit_ns: None,
};
const TAGGED: Option<Cover> = Some(Cover::Headers);
const WHOLE: Option<Cover> = Some(Cover::Whole);

const FORMS: [Form; 5] = [
    Form {
        duplicate_limit_ns: Some(90.0),
        accept_limit_ns: Some(160.0),
        ..PLAIN
    },
    Form {
        name: "-tagged",
        tagged: TAGGED,
        duplicate_limit_ns: Some(150.0),
        accept_limit_ns: Some(220.0),
        ..PLAIN
    },
    Form {
        name: "-whole",
        tagged: WHOLE,
        ..PLAIN
    },
    Form {
        name: "-v6",
        is_ipv6: true,
        ..PLAIN
    },
    Form {
        name: "-v6-tagged",
        is_ipv6: true,
        tagged: TAGGED,
        ..PLAIN
    },
];

pub(super) fn run(summary: &mut Summary) -> Result<()> {
    let mut bench = Bench::load()?;
    let floor =
        bench.median(|bench| Ok(bench.programs.empty_program(&transit_frame(), PACKETS)?))?;
    summary.cases.push(timed("floor/xdp-drop", None, floor));
    for form in FORMS {
        let name = format!("dedup/duplicate{}", form.name);
        let duplicate = bench.median(|bench| bench.duplicate(form, true))?;
        summary
            .cases
            .push(timed(&name, form.duplicate_limit_ns, duplicate));
    }
    let unread = bench.median(|bench| bench.duplicate(FORMS[0], false))?;
    summary
        .cases
        .push(timed("dedup/duplicate-records-full", None, unread));
    for form in FORMS {
        summary.cases.push(accept(&mut bench, form)?);
    }
    Ok(())
}

fn accept(bench: &mut Bench, form: Form) -> Result<Case> {
    let mut restore = Vec::new();
    let accept = bench.median(|bench| {
        restore.push(nanoseconds(bench.restore(form)?));
        bench.accept(form)
    })?;
    let name = format!("dedup/accept{}", form.name);
    let mut case = timed(&name, form.accept_limit_ns, accept);
    // Included in the figure above: packets are generated in the kernel, because accepting one
    // removes its headers.
    case.metrics.set("restore_ns_per_packet", median(restore));
    Ok(case)
}

fn timed(name: &str, limit_ns: Option<f64>, figure: f64) -> Case {
    let limit = limit_ns.map(|limit| ("ns_per_packet", limit));
    let mut case = case(name, limit.as_slice());
    case.metrics.set("ns_per_packet", figure);
    case
}

struct Bench {
    programs: DedupBench,
    flow: FlowId,
    key: SealKey,
    /// The next unused sequence number. Only duplicates reuse one.
    next_sequence: u64,
    records: Vec<hawser_replication_bpf::Arrival>,
}

impl Bench {
    fn load() -> Result<Self> {
        let receiver = Receiver::load(&ReceiverOptions {
            port: DEFAULT_PORT,
            transparent_within: Duration::from_secs(1),
            max_age: Duration::from_secs(86_400),
            fingerprint_key: [1, 2],
            recording_cpus: hawser_io::sysctl::online_cpus()?,
            pins: None,
        })?;
        for path in PathId::all().take(2) {
            receiver.set_path(path, Some(encapsulation(path).addresses.pair().1))?;
        }
        Ok(Bench {
            programs: DedupBench::load(receiver, DEFAULT_PORT)?,
            flow: FlowId::try_from(7)?,
            key: SealKey::derive(&Key::from_bytes([0x5a; 16]), "ingress", "egress"),
            next_sequence: 1 << 40,
            records: Vec::new(),
        })
    }

    /// Returns the median duration of `measure` in nanoseconds.
    fn median(&mut self, mut measure: impl FnMut(&mut Self) -> Result<Duration>) -> Result<f64> {
        let figures = (0..ROUNDS).map(|_| Ok(nanoseconds(measure(self)?)));
        Ok(median(figures.collect::<Result<_>>()?))
    }

    /// Measures duplicates. `read` empties the ring of arrival records, like a reader does.
    fn duplicate(&mut self, form: Form, read: bool) -> Result<Duration> {
        let frame = frame(self.shims(form, 1)?[0]);
        let receiver = self.programs.receiver();
        receiver.run(&frame, 1)?;
        if read {
            self.drain();
        }
        let run = self.programs.receiver().run(&frame, PACKETS)?;
        if read {
            self.drain();
            let duplicates = self
                .records
                .iter()
                .filter(|record| record.verdict == Verdict::Duplicate)
                .count();
            ensure!(
                duplicates == PACKETS as usize,
                "{duplicates} duplicates of {PACKETS} were recorded"
            );
        }
        Ok(run.duration)
    }

    fn accept(&mut self, form: Form) -> Result<Duration> {
        let shims = self.shims(form, PACKETS as usize)?;
        self.drain();
        self.programs.prepare(&frame(shims[0]), &shims);
        let duration = self.programs.accept(Accepting::Accept)?;
        self.drain();
        let accepted = self
            .records
            .iter()
            .filter(|record| record.verdict.accepts())
            .count();
        ensure!(
            accepted == shims.len(),
            "{accepted} packets of {PACKETS} were accepted"
        );
        Ok(duration)
    }

    fn restore(&mut self, form: Form) -> Result<Duration> {
        let shims = self.shims(form, PACKETS as usize)?;
        self.programs.prepare(&frame(shims[0]), &shims);
        Ok(self.programs.accept(Accepting::RestoreOnly)?)
    }

    /// Returns shims with new sequence numbers.
    fn shims(&mut self, form: Form, count: usize) -> Result<Vec<Shim>> {
        let key = form.tagged.map(|_| self.key.clone());
        let ring = SealRing {
            slots: [key, None],
            ..SealRing::default()
        };
        self.programs.receiver().set_flow(self.flow, Some(&ring))?;
        let path = PathId::try_from(u8::from(form.is_ipv6))?;
        let first = self.next_sequence;
        self.next_sequence += count as u64;
        let shim = |sequence| Shim {
            path,
            paths: PathSet::from_bits(0b11),
            epoch: 0,
            flow: self.flow,
            sequence,
            sent_micros: 0,
            seal: None,
        };
        let inner = transit_frame().split_off(14);
        let sealed = |shim: Shim| match form.tagged {
            Some(cover) => shim.sealed(KeySlot::Zero, &self.key, cover, &inner),
            None => shim,
        };
        Ok((first..self.next_sequence).map(shim).map(sealed).collect())
    }

    fn drain(&mut self) {
        self.records.clear();
        self.programs.arrivals().drain(&mut self.records);
    }
}

/// Returns a replica of the packet as the receiver gets it: over IPv4 on path 0, over IPv6 on path
/// 1.
fn frame(shim: Shim) -> Vec<u8> {
    let inner = &transit_frame()[14..];
    encapsulation(shim.path)
        .frame(&shim, inner)
        .expect("the packet fits")
}

fn encapsulation(path: PathId) -> Encapsulation {
    let addresses = match path.index() {
        0 => Addresses::V4 {
            source: Ipv4Addr::new(198, 51, 100, 1),
            destination: Ipv4Addr::new(198, 51, 100, 2),
        },
        _ => Addresses::V6 {
            source: Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1),
            destination: Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2),
        },
    };
    // Test runs take place on the loopback device.
    let (destination_mac, source_mac) = ([0; 6], [2, 0, 0, 0, 0, 1]);
    Encapsulation {
        destination_mac,
        source_mac,
        addresses,
        port: DEFAULT_PORT,
    }
}

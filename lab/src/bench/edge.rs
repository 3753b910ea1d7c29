use super::{case, median, nanoseconds, transit_frame};
use crate::summary::{Case, Summary};
use anyhow::{Result, ensure};
use hawser_replication_bpf::{Rule, Sender, SenderOptions, SignalOptions, Watcher};
use hawser_shim::DEFAULT_PORT;
use hawser_units::{FlowId, PathSet, PolicyCode};
use hawser_wire::{Key, SIGNAL_PORT, Signal, ip};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const ROUNDS: usize = 51;

/// Packets of a run: fewer than the capacity of the ring of requests.
const PACKETS: u32 = 8_000;

const HERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Measures the programs of an edge that inspect each packet of a device and act on few of them.
pub(super) fn run(summary: &mut Summary) -> Result<()> {
    signals(summary)?;
    watch(summary)
}

fn signals(summary: &mut Summary) -> Result<()> {
    let sender = signalled()?;
    let signal = Signal {
        flow: FlowId::try_from(7)?,
        epoch: 1,
        code: PolicyCode(1),
        probes: PathSet::EMPTY,
        probe_every: 0,
        sent_unix_micros: 0,
    };
    let payload = signal.emit(&Key::from_bytes([0; 16]))?;
    for (name, frame) in [
        ("signal/forged", frame(SIGNAL_PORT, &payload)),
        ("signal/malformed", frame(SIGNAL_PORT, &payload[1..])),
        ("signal/unrelated", transit_frame()),
    ] {
        summary.cases.push(timed(name, || {
            Ok(sender.run_signal(&frame, PACKETS)?.duration)
        })?);
    }
    Ok(())
}

/// Returns a sender without paths that receives signals.
fn signalled() -> Result<Sender> {
    let mut sender = Sender::load(&SenderOptions {
        port: DEFAULT_PORT,
        clock_offset_micros: 0,
        paths: PathSet::EMPTY,
        transit: false,
        local: false,
    })?;
    sender.enable_signals(&SignalOptions {
        interfaces: Vec::new(),
        addresses: vec![HERE.into()],
        port: SIGNAL_PORT,
        key: Key::from_bytes([0x5a; 16]),
    })?;
    Ok(sender)
}

fn watch(summary: &mut Summary) -> Result<()> {
    let flow = FlowId::try_from(7)?;
    let mut watcher = Watcher::load()?;
    let (protocol, ports) = (None, None);
    let rule = Rule {
        flow,
        protocol,
        ports,
    };
    watcher.select("198.51.100.0/24".parse()?, &[rule])?;
    watcher.set_flow(flow, Some(20..=200))?;
    for (name, frame) in [
        ("watch/request", frame(2000, &[0; 60])),
        ("watch/unrelated", transit_frame()),
    ] {
        let case = timed(name, || inspect(&mut watcher, flow, &frame))?;
        summary.cases.push(case);
    }
    Ok(())
}

/// Returns the duration of a run. Every request that was counted has to be reported.
fn inspect(watcher: &mut Watcher, flow: FlowId, frame: &[u8]) -> Result<Duration> {
    let before = watcher.stats(flow)?;
    let run = watcher.run(frame, PACKETS)?;
    let mut requests = Vec::new();
    watcher.drain(&mut requests);
    let counted = watcher.stats(flow)?.requests - before.requests;
    ensure!(
        requests.len() as u64 == counted,
        "only {} of {counted} requests were reported",
        requests.len()
    );
    Ok(run.duration)
}

fn timed(name: &str, mut measure: impl FnMut() -> Result<Duration>) -> Result<Case> {
    let figures = (0..ROUNDS).map(|_| Ok(nanoseconds(measure()?)));
    let mut case = case(name, &[]);
    case.metrics
        .set("ns_per_packet", median(figures.collect::<Result<_>>()?));
    Ok(case)
}

/// Returns a UDP packet to this node as it arrives.
fn frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let source = SocketAddr::from(([198, 51, 100, 2], 50_000));
    let packet = ip::udp_packet(source, (HERE, port).into(), 1, payload);
    [
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00],
        &packet[..],
    ]
    .concat()
}

//! Objects through moq-relay.

use super::super::scenario::{Load, Way};
use super::{Slice, cpu_of_relay, stay_on_cpu, total};
use crate::experiment::Run;
use crate::relays::{Audience, HOW_TO_INSTALL, MoqPublisher, MoqRelay, Network, Running};
use anyhow::{Context, Result, ensure};
use hawser_lab_bpf::{StreamProbe, SyscallCounter};
use hawser_testbed::ring::rise_to_realtime;
use std::thread;
use std::time::{Duration, Instant};

/// The least pause between two objects through moq-relay.
pub(super) const PAUSE: Duration = Duration::from_millis(15);

/// The least bytes of a packet of an object, in a packet of QUIC: acknowledgements have fewer.
pub(super) const LEAST_BYTES: u32 = 400;

/// Objects after which the congestion windows of moq-relay's connections have grown.
const WARM_UP: usize = 15;

/// The longest wait for the subscribers of moq-relay to join, and for their last objects.
const JOINING: Duration = Duration::from_secs(30);
const LAST_OBJECTS: Duration = Duration::from_secs(1);

/// Starts moq-relay on its CPU. Without subscribers it has nothing to do.
pub(super) fn start(load: Load, network: &Network, run: &Run) -> Result<Running> {
    let program = MoqRelay::find()?.context(HOW_TO_INSTALL)?;
    let folder = run.raw(&load.name(Way::MoqRelay).replace('/', "-"))?;
    network.let_subscribers_answer()?;
    thread::scope(|scope| {
        let start = scope.spawn(|| {
            stay_on_cpu(cpu_of_relay())?;
            program.start(network, &folder)
        });
        let started = start.join();
        started.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Has objects relayed, with a publisher and subscribers that join for it.
pub(super) fn slice(
    network: &Network,
    relay: &Running,
    load: Load,
    objects: usize,
    (streams, syscalls): (&mut StreamProbe, &SyscallCounter),
) -> Result<Slice> {
    let publisher = MoqPublisher::open(network, relay, take_first_cpu)?;
    let audience = Audience::open(network, relay, load.subscribers, take_first_cpu)?;
    let begun = Instant::now();
    let mut warm_up = 0;
    while warm_up < WARM_UP {
        publish(&publisher, load, 1)?;
        warm_up += usize::from(audience.is_complete());
        ensure!(
            begun.elapsed() < JOINING,
            "not all subscribers of moq-relay received an object"
        );
    }
    thread::sleep(LAST_OBJECTS / 2);
    audience.take(usize::MAX, Duration::ZERO)?;
    streams.take();
    syscalls.add(relay.id())?;
    let (calls, cpu) = (total(syscalls)?, relay.cpu_time()?);
    publish(&publisher, load, objects)?;
    let deliveries = load.subscribers * objects;
    let mut delays = audience.take(deliveries, LAST_OBJECTS)?;
    let cpu = relay.cpu_time()? - cpu;
    let calls = total(syscalls)? - calls;
    syscalls.remove(relay.id())?;
    let (packets, _) = streams.take();
    drop((audience, publisher));
    delays.sort_unstable();
    let per_object = u64::from(load.packets);
    Ok(Slice {
        expected: deliveries as u64 * per_object,
        delivered: delays.len() as u64 * per_object,
        delays: packets,
        objects: delays,
        program: Some(relay.version.clone()),
        cpu: cpu.as_secs_f64(),
        syscalls: calls,
    })
}

/// Prepares a thread for the publisher, or the subscribers, of moq-relay.
fn take_first_cpu() -> Result<()> {
    rise_to_realtime().context("cannot have real-time priority")?;
    stay_on_cpu(0)
}

/// Publishes objects at their pace, the last one with the pause after it.
fn publish(publisher: &MoqPublisher, load: Load, objects: usize) -> Result<()> {
    let mut due = Instant::now();
    for _ in 0..objects {
        publisher.publish(load.packets)?;
        due += load.interval(Way::MoqRelay);
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

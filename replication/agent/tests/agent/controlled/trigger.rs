//! Late requests of a viewer lead to copies on all paths, by the controller's stream and by in-band
//! signals.

use super::rig::{Controlled, to};
use crate::support::wait;
use hawser_model::resource::{Mode, Trigger};
use hawser_testbed::topology::Lab;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

/// The request of the viewer.
const REQUEST: [u8; 16] = [7; 16];

pub(super) fn trigger(lab: &Lab) -> Trigger {
    Trigger {
        select: to(lab.addressing().source.v4_prefix()),
        request_bytes: (16, 16),
        late_after_ms: Trigger::late_after_ms(),
        consecutive: Trigger::consecutive(),
    }
}

/// A viewer that sends thirty requests per second, and a source that sends continuously.
struct Conversation {
    viewer: UdpSocket,
    source: UdpSocket,
}

impl Conversation {
    fn new(lab: &Lab) -> Self {
        let source = lab
            .source()
            .run(|| UdpSocket::bind((lab.source_v4(), 0)).unwrap())
            .unwrap();
        let viewer = lab
            .viewer()
            .run(|| UdpSocket::bind((lab.viewer_v4(), 0)).unwrap())
            .unwrap();
        source.connect(viewer.local_addr().unwrap()).unwrap();
        viewer.connect(source.local_addr().unwrap()).unwrap();
        Conversation { viewer, source }
    }

    /// Sends until `enough` returns `true`, with or without requests.
    fn send_until(&self, with_requests: bool, what: &str, mut enough: impl FnMut() -> bool) {
        let (mut next, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(30));
        while !enough() {
            assert!(Instant::now() < deadline, "timed out waiting for {what}");
            if with_requests && Instant::now() >= next {
                self.viewer.send(&REQUEST).unwrap();
                next += Duration::from_millis(33);
            }
            self.source.send(&[1; 400]).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns the time of the first row of an event in a trace, and the time in its detail: since the
/// policy took effect, or since the request was due. Both in microseconds.
fn traced(directory: &std::path::Path, edge: &str, event: &str) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(directory.join(format!("{edge}.csv"))).ok()?;
    let row = text
        .lines()
        .find(|row| row.split(',').nth(3) == Some(event))?;
    let at_ns: u64 = row.split(',').next()?.parse().ok()?;
    let number = row
        .rsplit(',')
        .next()?
        .trim_matches('"')
        .split(' ')
        .next()?
        .parse()
        .ok()?;
    Some((at_ns / 1000, number))
}

/// Runs the flow until its viewer falls silent and copies are sent on both paths. Returns the time
/// from when the last of the late requests was due until the first copy was sent.
fn silence_brings_copies(controlled: &mut Controlled) -> Duration {
    let directory = controlled.rig.directory.path().to_owned();
    let conversation = Conversation::new(&controlled.rig.lab);
    let mut checks = 0;
    conversation.send_until(true, "a hundred requests", || {
        checks += 1;
        let edges = &controlled.rig.edges;
        let watch = || {
            edges
                .egress()
                .unwrap()
                .controller?
                .receive
                .into_values()
                .next()?
                .watch
        };
        checks % 100 == 0 && watch().is_some_and(|watch| watch.requests > 30 && watch.degraded == 0)
    });
    conversation.send_until(false, "the first copy", || {
        traced(&directory, "ingress", "first_replica").is_some()
    });
    let (first_us, _) = traced(&directory, "ingress", "first_replica").unwrap();
    let (noticed_us, since_due_us) =
        wait("the trigger", || traced(&directory, "egress", "degraded"));
    Duration::from_micros(first_us - (noticed_us - since_due_us))
}

#[test]
fn a_viewer_that_falls_silent_gets_copies_on_all_paths() {
    let mut controlled = Controlled::new();
    let flow = controlled.flow(Mode::Replicate, Some(trigger(&controlled.rig.lab)));
    controlled.control.create_flow(&flow).unwrap();
    let after_due = silence_brings_copies(&mut controlled);
    println!("the first copy left {after_due:?} after the third late request was due");
    controlled.await_code(0b11);
    // Stream and signal bring the same policy. It takes effect once.
    let count_events = |kind: &str| {
        let events = controlled.control.events().unwrap();
        events
            .into_iter()
            .filter(|event| event.kind == kind)
            .count()
    };
    wait("a report of the first copy", || {
        (count_events("first_replica") > 0).then_some(())
    });
    assert_eq!(
        (
            count_events("policy_applied"),
            count_events("first_replica")
        ),
        (2, 1),
        "off at first, then on both paths"
    );
    let signals = controlled
        .rig
        .edges
        .ingress()
        .unwrap()
        .controller
        .unwrap()
        .signals;
    assert!(signals.values().sum::<u64>() > 0, "{signals:?}");
}

#[test]
fn a_signal_arrives_where_the_stream_is_cut() {
    let mut controlled = Controlled::new();
    let flow = controlled.flow(Mode::Replicate, Some(trigger(&controlled.rig.lab)));
    controlled.control.create_flow(&flow).unwrap();
    // From here on, TCP to the ingress is lost, and neither side has noticed yet.
    let links = controlled.rig.lab.addressing().control.clone().unwrap();
    let cut = format!("rule add to {} ipproto tcp blackhole", links[0].far.v4);
    controlled.rig.lab.control().unwrap().ip(&cut).unwrap();
    silence_brings_copies(&mut controlled);
    let status = controlled
        .rig
        .edges
        .ingress_agent
        .wait_until("took the signal", |status| {
            status
                .controller
                .as_ref()
                .is_some_and(|controller| controller.signals.contains_key("accepted"))
        });
    let policy = status
        .unwrap()
        .controller
        .unwrap()
        .send
        .into_values()
        .next()
        .unwrap();
    assert_eq!(policy.code, 0b11);
    let log = controlled.rig.edges.ingress_agent.log();
    assert!(log.contains("by signal"), "{log}");
}

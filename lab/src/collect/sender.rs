//! The sending end.

use super::datagram::{Datagram, Key, Kind};
use super::flow::Flow;
use super::{MAX_UPLINKS, SILENCE, SendArgs, read_key, say};
use anyhow::{Context, Result, bail, ensure};
use hawser_testbed::topology::Stop;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::time::{Duration, Instant};

/// The interval at which due packets are sent, in milliseconds.
const TICK_MS: u8 = 1;

/// The time in which each uplink must have had an answer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// The time for which probes follow the first answers, and their interval. Radios are awake then.
const PROBING: Duration = Duration::from_secs(2);
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// The time for which data is sent after the collection, so that its last step is full at the receiving end, whose clock
/// may be slower.
const TAIL: Duration = Duration::from_millis(200);

/// How often the end is announced over each uplink until the receiving end confirms it.
const END_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(args: &SendArgs) -> Result<()> {
    ensure!(
        args.uplinks.len() <= MAX_UPLINKS,
        "at most {MAX_UPLINKS} uplinks"
    );
    let stop = Stop::on_signals()?;
    let mut sender = Sender::open(args)?;
    sender.probe(&stop)?;
    let outcome = sender
        .saturate(Duration::from_secs(args.seconds.into()), &stop)
        .and_then(|length| sender.confirm(length));
    let summary: String = sender.flows.iter().map(Flow::summary).collect();
    hawser_service::print(&summary)?;
    outcome
}

/// All uplinks. One thread serves them: at 400 Mb/s, there are 36 packets in each tick.
struct Sender {
    key: Key,
    flows: Vec<Flow>,
    /// The fields that are the same in all datagrams.
    head: Datagram,
    start: Instant,
    /// When the latest answer arrived.
    heard: Instant,
    is_written: bool,
}

impl Sender {
    fn open(args: &SendArgs) -> Result<Sender> {
        let open = |(number, uplink)| Flow::open(uplink, number, args.to);
        let flows = (0..).zip(&args.uplinks).map(open);
        let now = Instant::now();
        Ok(Sender {
            key: read_key(&args.key)?,
            flows: flows.collect::<Result<_>>()?,
            head: Datagram {
                run: getrandom::u64().context("no random number")?,
                receiver: 0,
                uplink: 0,
                kind: Kind::Probe,
                number: 0,
                sent_ns: 0,
                time_ns: 0,
                away_ms: [0; MAX_UPLINKS],
            },
            start: now,
            heard: now,
            is_written: false,
        })
    }

    /// Measures the round trips of the uplinks while they are idle.
    ///
    /// # Errors
    /// If an uplink has no answer in time, or a stop is requested.
    fn probe(&mut self, stop: &Stop) -> Result<()> {
        let begin = Instant::now();
        let (mut due, mut end) = (begin, None);
        loop {
            ensure!(!stop.requested(), "stopped before data was sent");
            let now = Instant::now();
            if now >= due {
                due = now + PROBE_INTERVAL;
                self.send_each(Kind::Probe, None);
            }
            self.read_answers();
            let unanswered = self.flows.iter().filter(|flow| flow.round_trip.is_none());
            let unanswered: Vec<_> = unanswered.map(Flow::interface).collect();
            if unanswered.is_empty() {
                if now >= *end.get_or_insert(now + PROBING) {
                    return Ok(());
                }
            } else if now >= begin + FIRST_ANSWER {
                bail!(
                    "no answer over {}: is the receiving end running, with the same key? Nothing was collected",
                    unanswered.join(", ")
                );
            }
            self.wait();
        }
    }

    /// Sends over each uplink at its rate for `length`, or until a stop is requested. Returns for how long.
    ///
    /// # Errors
    /// If no uplink has an answer for long.
    fn saturate(&mut self, length: Duration, stop: &Stop) -> Result<Duration> {
        let begin = Instant::now();
        say("collecting");
        loop {
            let at = begin.elapsed();
            if at >= length + TAIL {
                return Ok(length);
            }
            if stop.requested() {
                return Ok(at.min(length));
            }
            ensure!(
                self.heard.elapsed() < SILENCE,
                "no answer over any uplink for {} s, so the collection ended after {at:.1?}",
                SILENCE.as_secs()
            );
            self.update_head();
            for flow in &mut self.flows {
                flow.send_due(at, &self.head, &self.key);
            }
            self.read_answers();
            self.wait();
        }
    }

    /// Ends a run of `length`.
    ///
    /// # Errors
    /// If the receiving end does not confirm that it has written the drives.
    fn confirm(&mut self, length: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < SILENCE {
            self.send_each(Kind::End, Some(length));
            let next = Instant::now() + END_INTERVAL;
            while Instant::now() < next {
                self.read_answers();
                if self.is_written {
                    return Ok(());
                }
                self.wait();
            }
        }
        bail!("the receiving end does not confirm that it has written the drives");
    }

    /// Sends a datagram over each uplink, with a time or the uplink's round trip.
    fn send_each(&mut self, kind: Kind, time: Option<Duration>) {
        self.update_head();
        for flow in &mut self.flows {
            let time = time.or(flow.round_trip).unwrap_or_default();
            let datagram = Datagram {
                kind,
                time_ns: time.as_nanos() as u64,
                ..self.head
            };
            // The next one replaces one that cannot be sent.
            flow.send(&datagram, &self.key);
        }
    }

    fn update_head(&mut self) {
        self.head.sent_ns = self.start.elapsed().as_nanos() as u64;
        for (ms, flow) in self.head.away_ms.iter_mut().zip(&self.flows) {
            *ms = flow.away().as_millis() as u32;
        }
    }

    /// Waits for the next tick, or for an answer: a round trip ends when it arrives.
    fn wait(&self) {
        let flows = self.flows.iter();
        let mut sockets: Vec<_> = flows
            .map(|flow| PollFd::new(flow.descriptor(), PollFlags::POLLIN))
            .collect();
        // A signal ends it early.
        let _ = poll(&mut sockets, PollTimeout::from(TICK_MS));
    }

    fn read_answers(&mut self) {
        for flow in &mut self.flows {
            while let Some(answer) = flow.receive(&self.key) {
                if answer.run != self.head.run || answer.kind.is_of_sender() {
                    continue;
                }
                self.heard = Instant::now();
                match answer.kind {
                    Kind::Echo => {
                        self.head.receiver = answer.receiver;
                        let passed = self.start.elapsed();
                        let took = passed.saturating_sub(Duration::from_nanos(answer.sent_ns));
                        let smallest = flow.round_trip.map_or(took, |known| known.min(took));
                        flow.round_trip = Some(smallest);
                    }
                    Kind::Written => self.is_written = true,
                    _ => {}
                }
            }
        }
    }
}

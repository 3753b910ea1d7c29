use super::bottleneck::Bottleneck;
use super::packet::{Packet, Report};
use hawser_netem::{Delay, ExtraDelay, Link, LinkConfig, Loss, Span, Steps};
use hawser_units::{ByteSize, Instant};
use std::time::Duration;

/// Both ends of a flow.
pub(crate) trait Flow {
    fn poll_timeout(&self) -> Option<Instant>;
    fn handle_timeout(&mut self, now: Instant);
    fn poll_transmit(&mut self, now: Instant) -> Option<Packet>;
    /// The receiver takes a packet that waited at the bottleneck.
    fn receive(&mut self, now: Instant, packet: Packet);
    fn poll_report(&mut self, now: Instant) -> Option<Report>;
    fn handle_report(&mut self, now: Instant, report: Report);
    /// Takes the time for which a packet of the flow waited.
    fn observe_queue(&mut self, _now: Instant, _waited: Duration) {}
}

pub(crate) struct Network<'a> {
    pub(crate) now: Instant,
    pub(crate) bottleneck: Bottleneck,
    forward: Vec<Link<Packet>>,
    reverse: Vec<Link<Report>>,
    flows: Vec<&'a mut dyn Flow>,
}

/// A path of 10 ms.
pub(crate) fn path() -> LinkConfig {
    LinkConfig {
        delay: Delay::Constant(Duration::from_millis(10)),
        ..LinkConfig::default()
    }
}

/// A path that loses a share of the packets from times in seconds on.
pub(crate) fn lossy_path(steps: &[(f64, f64)]) -> LinkConfig {
    let step =
        |(from, share): &(f64, f64)| (Duration::from_secs_f64(*from), (*share).try_into().unwrap());
    LinkConfig {
        loss: Some(Loss::Steps(
            Steps::new(steps.iter().map(step).collect()).unwrap(),
        )),
        ..path()
    }
}

/// A path that loses everything between two times in milliseconds.
pub(crate) fn path_with_cut(from: u64, to: u64) -> LinkConfig {
    LinkConfig {
        cuts: vec![Span::new(Duration::from_millis(from), Duration::from_millis(to)).unwrap()],
        ..path()
    }
}

/// A path of another delay in each direction.
pub(crate) fn path_of(delay: Duration) -> LinkConfig {
    LinkConfig {
        delay: Delay::Constant(delay),
        ..LinkConfig::default()
    }
}

/// A path whose packets are delayed by up to a time more, in order.
pub(crate) fn jittery_path(milliseconds: f64) -> LinkConfig {
    let range = Span::new(Duration::ZERO, Duration::from_secs_f64(milliseconds / 1e3));
    LinkConfig {
        extra_delay: vec![ExtraDelay {
            range: range.unwrap(),
            hold: Duration::ZERO,
            during: None,
        }],
        ..path()
    }
}

fn links<T: Clone>(config: &LinkConfig, seed: u64, count: usize) -> Vec<Link<T>> {
    let link = |number| Link::new(config.clone(), seed + 100 * number as u64, Instant::ZERO);
    (0..count).map(link).collect()
}

impl<'a> Network<'a> {
    pub(crate) fn new(
        bottleneck: Bottleneck,
        forward: LinkConfig,
        reverse: LinkConfig,
        seed: u64,
        flows: Vec<&'a mut dyn Flow>,
    ) -> Self {
        Network {
            now: Instant::ZERO,
            bottleneck,
            forward: links(&forward, seed, flows.len()),
            reverse: links(&reverse, seed + 1, flows.len()),
            flows,
        }
    }

    /// Sets the path of one flow in each direction.
    pub(crate) fn with_path(mut self, flow: usize, config: &LinkConfig) -> Self {
        self.forward[flow] = Link::new(config.clone(), flow as u64, Instant::ZERO);
        self.reverse[flow] = Link::new(config.clone(), flow as u64, Instant::ZERO);
        self
    }

    pub(crate) fn run(&mut self, until: Duration) {
        let end = Instant::ZERO + until;
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            assert!(next >= self.now);
            self.now = next;
            self.deliver();
            self.serve();
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Instant> {
        let flows = self.flows.iter().map(|flow| flow.poll_timeout());
        let forward = self.forward.iter().map(Link::next_departure);
        let reverse = self.reverse.iter().map(Link::next_departure);
        let served = std::iter::once(self.bottleneck.next_departure());
        let events = flows.chain(forward).chain(reverse).chain(served);
        let next = events.flatten().min()?;
        Some(next.max(self.now))
    }

    fn deliver(&mut self) {
        while let Some((waited, packet)) = self.bottleneck.pop(self.now) {
            self.flows[packet.flow].observe_queue(self.now, waited);
            self.forward[packet.flow].push(self.now, packet.size, packet);
        }
        for (number, flow) in self.flows.iter_mut().enumerate() {
            while let Some((_, packet)) = self.forward[number].pop(self.now) {
                flow.receive(self.now, packet);
            }
            while let Some((_, report)) = self.reverse[number].pop(self.now) {
                flow.handle_report(self.now, report);
            }
        }
    }

    fn serve(&mut self) {
        for flow in &mut self.flows {
            flow.handle_timeout(self.now);
            while let Some(packet) = flow.poll_transmit(self.now) {
                self.bottleneck.push(self.now, packet);
            }
            while let Some(report) = flow.poll_report(self.now) {
                self.reverse[report.flow].push(self.now, ByteSize(100), report);
            }
        }
    }
}

use crate::support::network::Flow;
use crate::support::packet::{Packet, Report};
use hawser_lab::rivals::bulk::{Acknowledgement, Receiver, Segment, Sender, Window};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// A bulk flow between a start and the end of the run.
pub(crate) struct Bulk<W> {
    pub(crate) flow: usize,
    pub(crate) starts_at: Instant,
    pub(crate) sender: Sender<W>,
    pub(crate) receiver: Receiver,
    pub(crate) received: Vec<(Instant, u64)>,
    queue_delays: Vec<(f64, f64)>,
    reports: VecDeque<Report>,
}

impl<W: Window> Bulk<W> {
    pub(crate) fn new(flow: usize, starts_at: Instant, sender: Sender<W>) -> Self {
        Bulk {
            flow,
            starts_at,
            sender,
            receiver: Receiver::default(),
            received: Vec::new(),
            queue_delays: Vec::new(),
            reports: VecDeque::new(),
        }
    }

    /// Returns the rate in Mb/s of what was received in a period of seconds.
    pub(crate) fn mbps(&self, from: f64, to: f64) -> f64 {
        let within = |(at, _): &&(Instant, u64)| (from..to).contains(&at.as_secs_f64());
        let bytes: u64 = self.received.iter().filter(within).map(|r| r.1).sum();
        bytes as f64 * 8e-6 / (to - from)
    }

    /// Returns the waiting times of packets in ms in a period of seconds.
    pub(crate) fn queue_ms(&self, from: f64, to: f64) -> Vec<f64> {
        let within = self
            .queue_delays
            .iter()
            .filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, ms)| *ms).collect()
    }
}

impl<W: Window> Flow for Bulk<W> {
    fn poll_timeout(&self) -> Option<Instant> {
        let due = self.sender.poll_timeout()?.max(self.starts_at);
        Some(due)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.sender.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        if now < self.starts_at {
            return None;
        }
        let segment = self.sender.poll_transmit(now)?;
        Some(Packet {
            flow: self.flow,
            number: segment.number,
            size: segment.size,
            ecn: segment.ecn,
            frame: 0,
        })
    }

    fn receive(&mut self, now: Instant, packet: Packet) {
        let acknowledgement = self.receiver.handle_segment(&Segment {
            number: packet.number,
            size: packet.size,
            ecn: packet.ecn,
        });
        self.received.push((now, packet.size.0));
        self.reports.push_back(Report {
            flow: self.flow,
            sent_at: now,
            arrivals: vec![(acknowledgement.number, now, acknowledgement.ecn)],
        });
    }

    fn poll_report(&mut self, _now: Instant) -> Option<Report> {
        self.reports.pop_front()
    }

    fn handle_report(&mut self, now: Instant, report: Report) {
        for (number, _, ecn) in report.arrivals {
            let acknowledgement = Acknowledgement { number, ecn };
            self.sender.handle_acknowledgement(now, acknowledgement);
        }
    }

    fn observe_queue(&mut self, now: Instant, waited: Duration) {
        self.queue_delays
            .push((now.as_secs_f64(), waited.as_secs_f64() * 1e3));
    }
}

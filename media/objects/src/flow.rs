//! The stream to one viewer, at the rate that its path bears.

use crate::object::{ObjectInfo, SealedObject, SealedPacket};
use crate::sender::{AdmitError, FeedbackError, Outcome, Sender, SenderConfig, SenderEvent};
use hawser_congestion::{Acked, Feedback as Report, Pacer, Permission, RateControl, Spread};
use hawser_packets::feedback::{ClockStamp, Feedback};
use hawser_packets::media::{ObjectId, PacketId};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`Flow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowConfig {
    /// The settings of the in-flight buffer.
    pub sender: SenderConfig,
    /// How the packets of a capture are spread.
    pub spread: Spread,
    /// The headers below each datagram. Rates include them.
    pub overhead: ByteSize,
    /// The time that earlier frames may need to leave before the base of a newer one goes ahead of
    /// them.
    pub backlog: Duration,
    /// Whether datagrams may have departure times, which the driver gives to the kernel.
    pub departure_times: bool,
}

/// The stream to one viewer: in-flight buffer, rate control and pacer.
///
/// All layers and tracks of one capture have one deadline.
pub struct Flow {
    config: FlowConfig,
    sender: Sender,
    control: Box<dyn RateControl + Send>,
    pacer: Pacer,
    /// Whether the kernel holds packets until they are to leave, and whether it ever did.
    is_kernel_paced: bool,
    was_kernel_paced: bool,
    captures: Captures,
    utilisation: Utilisation,
}

/// A datagram that leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The packet.
    pub id: PacketId,
    /// When it leaves.
    pub at: Instant,
    /// The UDP payload.
    pub datagram: Arc<[u8]>,
    /// The ECN field of its IP header.
    pub ecn: Ecn,
    /// Whether the packet was sent before.
    pub is_repeated: bool,
}

/// The sizes of the captures that wait or leave, by deadline.
#[derive(Debug, Default)]
struct Captures {
    sizes: Vec<(Instant, ByteSize)>,
    leaving: Option<Instant>,
}

/// The share of the target that the encoder uses.
#[derive(Debug)]
struct Utilisation {
    since: Option<Instant>,
    offered: ByteSize,
    is_low: bool,
}

/// The bytes of the headers of IPv4 and UDP.
pub const IPV4_UDP: ByteSize = ByteSize(28);
/// The bytes of the headers of IPv6 and UDP.
pub const IPV6_UDP: ByteSize = ByteSize(48);

/// The maximum time by which a packet is given to a pacing kernel ahead of its departure, and the time at
/// which the next ones are given. The sending thread may be late by as much. Packets cannot be recalled
/// from the kernel.
const AHEAD: Duration = Duration::from_millis(5);
const STILL_AHEAD: Duration = Duration::from_millis(4);

/// The maximum number of bytes that the kernel holds: 64 packets, where `fq` drops what exceeds 100 of a flow.
const MOST_AHEAD: ByteSize = ByteSize(64 * 1228);

/// The number of captures whose sizes are remembered.
const CAPTURES: usize = 64;

/// The time over which the encoder's rate is compared with the target, and the share of the target
/// below which the application limits the rate. Above it, the packets of a frame still test the path
/// at the rate at which they leave, and rate controls have a bound of their own.
const WINDOW: Duration = Duration::from_millis(200);
const LOW: f64 = 0.4;

impl FlowConfig {
    /// Returns settings for a buffer of this size over IPv4: paced at the rate that the path bears; a
    /// base goes ahead of a backlog of more than 10 ms.
    pub const fn new(capacity: ByteSize) -> Self {
        FlowConfig {
            sender: SenderConfig::new(capacity),
            spread: Spread::BorneRate,
            overhead: IPV4_UDP,
            backlog: Duration::from_millis(10),
            departure_times: false,
        }
    }
}

impl Flow {
    /// Creates a flow without packets.
    pub fn new(config: FlowConfig, control: Box<dyn RateControl + Send>) -> Self {
        Flow {
            sender: Sender::new(config.sender),
            control,
            pacer: Pacer::new(config.spread),
            is_kernel_paced: false,
            was_kernel_paced: false,
            captures: Captures::default(),
            utilisation: Utilisation::default(),
            config,
        }
    }

    /// Offers the objects of one capture to the in-flight buffer, each layer after those that it
    /// depends on. Returns whether each was admitted; the buffer counts those that were not.
    pub fn offer(&mut self, now: Instant, objects: &[SealedObject]) -> Vec<Result<(), AdmitError>> {
        self.compare_backlog();
        for object in objects {
            self.add_offered(&object.info, &object.packets);
        }
        self.utilisation.update(now, self.control.target());
        let admit = |object| self.sender.offer(now, object);
        objects.iter().map(admit).collect()
    }

    /// Offers an object that is part of no capture, ahead of any backlog. The buffer counts one that it does not
    /// admit.
    ///
    /// # Errors
    /// If it is not admitted.
    pub fn offer_ahead(&mut self, now: Instant, object: &SealedObject) -> Result<(), AdmitError> {
        let headers = ByteSize(self.config.overhead.0 * object.packets.len() as u64);
        self.utilisation.add(object.size() + headers);
        self.utilisation.update(now, self.control.target());
        self.sender.set_urgent(true);
        self.sender.offer(now, object)
    }

    /// Admits an object that is still encoded. `expected` bytes are reserved in the in-flight buffer until
    /// its packets need more. The buffer counts objects that it does not admit.
    pub fn admit(
        &mut self,
        now: Instant,
        info: ObjectInfo,
        expected: ByteSize,
    ) -> Result<(), AdmitError> {
        self.compare_backlog();
        self.sender.admit(now, info, expected)
    }

    /// Adds the next packets of an object; those of one that was not admitted, or was dropped, are
    /// ignored.
    pub fn push(&mut self, now: Instant, info: &ObjectInfo, packets: &[SealedPacket]) {
        self.add_offered(info, packets);
        self.utilisation.update(now, self.control.target());
        self.sender.push(&info.id, packets);
    }

    /// Records that an object has no more packets.
    pub fn finish(&mut self, id: &ObjectId) {
        self.sender.finish(id);
    }

    /// Takes a report of the viewer.
    ///
    /// # Errors
    /// If the report is impossible. It then has no effect.
    pub fn handle_feedback(
        &mut self,
        now: Instant,
        number: u64,
        report: &Feedback,
    ) -> Result<Outcome, FeedbackError> {
        let outcome = self.sender.handle_feedback(now, number, report)?;
        self.tell(now, report.clock.sent, &outcome);
        Ok(outcome)
    }

    /// Sets whether the kernel holds packets until they are to leave. Then [`Flow::poll_transmit`] returns
    /// them some milliseconds ahead. It does not at first.
    pub const fn set_kernel_paced(&mut self, is_kernel_paced: bool) {
        self.is_kernel_paced = is_kernel_paced;
        self.was_kernel_paced |= is_kernel_paced;
    }

    /// Returns the next datagram to send now, or soon if the kernel paces. Does nothing before
    /// [`Flow::poll_timeout`].
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Departure> {
        let at = self.may_send_at()?.max(now);
        if at > now + self.ahead() {
            return None;
        }
        let ecn = self.control.ecn();
        let transmit = self.sender.poll_transmit(at)?;
        if let Some(size) = self.captures.begin(transmit.deadline) {
            self.pacer.begin_frame(size);
        }
        let size = ByteSize(transmit.datagram.len() as u64) + self.config.overhead;
        let rate = self.control.pacing_rate();
        self.pacer.handle_sent(at, size, rate);
        self.control.handle_sent(at, transmit.number, size);
        if self.sender.has_transmit() && self.may_send_at().is_some() {
            self.pacer.handle_waiting();
        }
        Some(Departure {
            id: transmit.id,
            at,
            datagram: transmit.datagram,
            ecn,
            is_repeated: transmit.is_repeated,
        })
    }

    /// Returns the next event of the in-flight buffer.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.sender.poll_event()
    }

    /// Returns when [`Flow::handle_timeout`] or [`Flow::poll_transmit`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ahead = self.ahead().min(STILL_AHEAD);
        let may_send = self.may_send_at().map(|at| at - ahead);
        let may_send = may_send.filter(|_| self.sender.has_transmit());
        let others = [self.sender.poll_timeout(), self.control.poll_timeout()];
        may_send
            .into_iter()
            .chain(others.into_iter().flatten())
            .min()
    }

    /// Reacts to missing reports and drops late objects. Does nothing before the timeout.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if is_due(self.control.poll_timeout()) {
            self.control.handle_timeout(now);
        }
        if is_due(self.sender.poll_timeout()) {
            let outcome = self.sender.handle_timeout(now);
            self.tell(now, now, &outcome);
        }
    }

    /// Returns a time stamp for a message to the viewer.
    pub fn stamp(&mut self, now: Instant) -> ClockStamp {
        self.sender.clock_mut().stamp(now)
    }

    /// Returns the in-flight buffer.
    pub const fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Returns the rate control.
    pub fn control(&self) -> &(dyn RateControl + Send) {
        &*self.control
    }

    /// Returns whether the encoder recently used so little of the target that the rate does not grow.
    pub const fn is_app_limited(&self) -> bool {
        self.utilisation.is_low
    }

    /// Returns whether the kernel holds packets until they are to leave.
    pub const fn is_kernel_paced(&self) -> bool {
        self.is_kernel_paced
    }

    /// Lets bases go ahead of a large backlog.
    fn compare_backlog(&mut self) {
        let backlog = self.control.pacing_rate().bytes_in(self.config.backlog);
        self.sender.set_urgent(self.sender.waiting() > backlog);
    }

    /// Counts packets of an object with all headers.
    fn add_offered(&mut self, info: &ObjectInfo, packets: &[SealedPacket]) {
        let size = packets
            .iter()
            .map(|packet| packet.size() + self.config.overhead)
            .sum();
        self.captures.add(info.deadline, size);
        self.utilisation.add(size);
    }

    /// Passes a report that was sent at `reported` by the viewer's clock to the rate control.
    fn tell(&mut self, now: Instant, reported: Instant, outcome: &Outcome) {
        let can_send = self.control.permission() == Permission::Send;
        let mut abandoned = outcome.abandoned_numbers.clone();
        let mut acked = Vec::with_capacity(outcome.acknowledged.len());
        for packet in &outcome.acknowledged {
            // Which copy of a repeated packet arrived is not certain, so it measures no round trip
            // (RFC 9002, section 5.1 has numbers for that) unless nothing else shows that the path
            // works again. Neither does one that left before its departure time, because the kernel no longer followed it.
            let is_early = |arrived| {
                let held = reported.saturating_since(arrived);
                self.was_kernel_paced && packet.sent + held > now
            };
            let measures =
                |arrived: &Instant| (!packet.is_repeated || !can_send) && !is_early(*arrived);
            match packet.arrived.filter(measures) {
                Some(arrived) => acked.push(Acked {
                    number: packet.number,
                    held: reported.saturating_since(arrived),
                    ecn: packet.ecn,
                }),
                None => abandoned.push(packet.number),
            }
        }
        self.control.handle_feedback(&Report {
            now,
            reported,
            acked: &acked,
            lost: &outcome.lost_numbers,
            abandoned: &abandoned,
            is_answer: !outcome.acknowledged.is_empty(),
            app_limited: self.utilisation.is_low,
        });
    }

    /// Returns when a packet may leave; `None` while the window is full.
    fn may_send_at(&self) -> Option<Instant> {
        let paced = self.pacer.next_send();
        match self.control.permission() {
            Permission::Send => {
                // Packets that the kernel still holds are not in flight.
                let held = self.control.pacing_rate().bytes_in(self.ahead());
                let in_flight = self.control.in_flight().0.saturating_sub(held.0);
                (in_flight < self.control.window().0).then_some(paced)
            }
            Permission::Probe { at } => Some(paced.max(at)),
        }
    }

    /// Returns the time by which a packet may be returned ahead of its departure.
    fn ahead(&self) -> Duration {
        if !self.is_kernel_paced || self.control.permission() != Permission::Send {
            return Duration::ZERO;
        }
        let rate = self.control.pacing_rate();
        AHEAD.min(self.pacer.time_to_send(MOST_AHEAD, rate))
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.control.target();
        f.debug_struct("Flow")
            .field("config", &self.config)
            .field("target", &target)
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

impl Captures {
    fn add(&mut self, deadline: Instant, size: ByteSize) {
        match self.sizes.iter_mut().find(|(at, _)| *at == deadline) {
            Some((_, sum)) => *sum += size,
            None => self.sizes.push((deadline, size)),
        }
        if self.sizes.len() > CAPTURES {
            self.sizes.remove(0);
        }
    }

    /// Returns the size of a capture, if its first packet leaves now and none of a later one has left.
    fn begin(&mut self, deadline: Instant) -> Option<ByteSize> {
        if self.leaving.is_some_and(|leaving| deadline <= leaving) {
            return None;
        }
        let found = self.sizes.iter().find(|(at, _)| *at == deadline);
        let (_, size) = *found?;
        self.leaving = Some(deadline);
        self.sizes.retain(|(at, _)| *at > deadline);
        Some(size)
    }
}

impl Default for Utilisation {
    fn default() -> Self {
        Utilisation {
            since: None,
            offered: ByteSize(0),
            is_low: false,
        }
    }
}

impl Utilisation {
    fn add(&mut self, size: ByteSize) {
        self.offered += size;
    }

    /// Compares the bytes that were offered since the window began with the target, when the window ends.
    fn update(&mut self, now: Instant, target: Bitrate) {
        let Some(since) = self.since else {
            self.begin(now);
            return;
        };
        let elapsed = now.saturating_since(since);
        if elapsed >= WINDOW {
            let full = target.bytes_in(elapsed).0 as f64;
            self.is_low = (self.offered.0 as f64) < LOW * full;
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Instant) {
        self.since = Some(now);
        self.offered = ByteSize(0);
    }
}

#[cfg(test)]
mod tests;

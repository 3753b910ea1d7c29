use super::Outgoing;
use super::path_size::PathSize;
use crate::flow::{Flow, FlowConfig, IPV4_UDP, IPV6_UDP};
use crate::object::{ObjectInfo, SealedObject, SealedPacket};
use crate::sender::{Outcome, SenderStats};
use hawser_congestion::{DepartureCheck, DepartureFinding, Permission, RateControl, Refusals};
use hawser_packets::feedback::{Feedback, Pose, Totals};
use hawser_packets::media::ObjectId;
use hawser_units::{Bitrate, ByteSize, Instant};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The time in which a backlog is to leave, and the time that packets may need to leave without being
/// a backlog.
const DRAIN_TIME: Duration = Duration::from_millis(100);
const USUAL_WAIT: Duration = Duration::from_millis(5);

/// The time without a report after which a viewer has probably left. It reports every few milliseconds
/// while packets arrive.
const HEARD_WITHIN: Duration = Duration::from_millis(400);

/// A viewer that has selected tracks, and the flow to it.
#[derive(Debug)]
pub(super) struct ViewerFlow {
    pub(super) address: SocketAddr,
    /// The number of layers of each track.
    pub(super) selected: BTreeMap<u32, u8>,
    /// The most layers that it has selected of each track.
    pub(super) most: BTreeMap<u32, u8>,
    pub(super) flow: Flow,
    /// The length of the datagrams that the path carries.
    pub(super) path: PathSize,
    /// Whether the kernel follows departure times, if datagrams may have them.
    departures: Option<DepartureCheck>,
    pub(super) pose: Option<Pose>,
    /// The arrival of the newest report, or the time at which the viewer joined.
    heard: Instant,
    totals: Totals,
    one_way: Option<Duration>,
    least_one_way: Option<Duration>,
}

/// The state of the flow to a viewer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ViewerStatus {
    /// The session.
    pub session: u32,
    /// The viewer's address.
    pub address: SocketAddr,
    /// The rate at which to encode, with all headers.
    pub target: Bitrate,
    /// The rate at which packets leave.
    pub pacing_rate: Bitrate,
    /// The smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// The newest one-way delay. It is wrong by half the difference between the directions at most.
    pub one_way: Option<Duration>,
    /// The part of it beyond the least one so far: the delay of queues.
    pub queue: Option<Duration>,
    /// The bytes that are sent and neither acknowledged nor lost.
    pub in_flight: ByteSize,
    /// The bytes that wait to be sent.
    pub waiting: ByteSize,
    /// The totals of the viewer's newest report.
    pub received: Totals,
    /// Whether the encoder uses so little of the target that the rate does not grow.
    pub is_app_limited: bool,
    /// Whether the kernel holds packets until they are to leave.
    pub is_kernel_paced: bool,
    /// Items of reports that the rate control refused.
    pub refusals: Refusals,
    /// The counts of the in-flight buffer.
    pub sender: SenderStats,
}

impl ViewerFlow {
    pub(super) fn new(
        now: Instant,
        address: SocketAddr,
        selected: BTreeMap<u32, u8>,
        flow: FlowConfig,
        control: Box<dyn RateControl + Send>,
    ) -> Self {
        let overhead = match address.ip().to_canonical() {
            ip if ip.is_ipv4() => IPV4_UDP,
            _ => IPV6_UDP,
        };
        ViewerFlow {
            address,
            most: selected.clone(),
            selected,
            departures: flow.departure_times.then(DepartureCheck::default),
            flow: Flow::new(FlowConfig { overhead, ..flow }, control),
            path: PathSize::new(),
            pose: None,
            heard: now,
            totals: Totals::default(),
            one_way: None,
            least_one_way: None,
        }
    }

    /// Changes the selection.
    pub(super) fn select(&mut self, selected: BTreeMap<u32, u8>) {
        for (alias, layers) in &selected {
            let most = self.most.entry(*alias).or_default();
            *most = (*layers).max(*most);
        }
        self.selected = selected;
    }

    /// Returns whether the viewer reported recently and its path works.
    pub(super) fn is_heard(&self, now: Instant) -> bool {
        let sends = self.flow.control().permission() == Permission::Send;
        sends && now.saturating_since(self.heard) < HEARD_WITHIN
    }

    /// Returns the rate at which to encode a frame now, bits per second: that of the rate control, less
    /// the rate at which queued packets leave in [`DRAIN_TIME`], and at least half of it. Otherwise a
    /// backlog would remain, and delay every frame.
    pub(super) fn target(&self) -> f64 {
        let control = self.flow.control();
        let target = control.target().bps() as f64;
        let usual = control.pacing_rate().bytes_in(USUAL_WAIT);
        let backlog = self.flow.sender().waiting().0.saturating_sub(usual.0);
        let drained = backlog as f64 * 8.0 / DRAIN_TIME.as_secs_f64();
        (target - drained).max(target / 2.0)
    }

    /// Offers the selected objects of a frame. The buffer counts objects that it does not admit.
    pub(super) fn offer(&mut self, now: Instant, objects: &[SealedObject]) {
        let selected = objects
            .iter()
            .filter(|object| self.has_selected(&object.info.id));
        let objects: Vec<SealedObject> = selected.cloned().collect();
        let _ = self.flow.offer(now, &objects);
    }

    /// Offers a packet of sound, if its track is selected. The buffer counts one that it does not admit.
    pub(super) fn offer_sound(&mut self, now: Instant, object: &SealedObject) {
        if self.has_selected(&object.info.id) {
            let _ = self.flow.offer_ahead(now, object);
        }
    }

    /// Admits an object of which the packets follow, if it is selected. The buffer counts what it does
    /// not admit.
    pub(super) fn admit(&mut self, now: Instant, info: ObjectInfo, expected: ByteSize) {
        if self.has_selected(&info.id) {
            let _ = self.flow.admit(now, info, expected);
        }
    }

    /// Adds the next packets of an object, also of one that was selected when it began and no longer is: no
    /// viewer gets a part of an object.
    pub(super) fn push(&mut self, now: Instant, info: &ObjectInfo, packets: &[SealedPacket]) {
        if self.has_selected(&info.id) || self.flow.sender().keeps(&info.id) {
            self.flow.push(now, info, packets);
        }
    }

    fn has_selected(&self, id: &ObjectId) -> bool {
        let layers = self.selected.get(&id.alias);
        layers.is_some_and(|layers| id.layer < *layers)
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let departure = self.flow.poll_transmit(now)?;
        let mut is_stamped = false;
        if let Some(check) = &mut self.departures {
            is_stamped = check.poll_check(now, departure.at);
            self.flow.set_kernel_paced(check.is_obeyed());
        }
        Some(Outgoing {
            to: self.address,
            datagram: departure.datagram,
            ecn: departure.ecn,
            at: (departure.at > now).then_some(departure.at),
            is_stamped,
        })
    }

    /// Returns the departure time of a message that tests whether the kernel follows departure times. While
    /// packets of media wait, none is.
    pub(super) fn poll_trial(&mut self, now: Instant) -> Option<Instant> {
        let check = self.departures.as_mut()?;
        (!self.flow.sender().has_transmit())
            .then(|| check.poll_trial(now))
            .flatten()
    }

    /// Records the departure of a datagram.
    pub(super) fn handle_left(&mut self, now: Instant, planned: Instant, left: Instant) {
        if let Some(check) = &mut self.departures {
            check.handle_left(now, planned, left);
            self.flow.set_kernel_paced(check.is_obeyed());
        }
    }

    /// Returns the new finding of whether the kernel follows departure times, if there is one.
    pub(super) fn poll_finding(&mut self) -> Option<DepartureFinding> {
        self.departures.as_mut()?.poll_finding()
    }

    /// Processes a report. Returns the number of packets that it is the first to acknowledge.
    pub(super) fn handle_feedback(
        &mut self,
        now: Instant,
        number: u64,
        report: &Feedback,
    ) -> usize {
        self.heard = now;
        // The buffer counts refused reports.
        let Ok(outcome) = self.flow.handle_feedback(now, number, report) else {
            return 0;
        };
        self.handle_outcome(&outcome);
        outcome.acknowledged.len()
    }

    fn handle_outcome(&mut self, outcome: &Outcome) {
        self.totals.packets += outcome.growth.packets;
        self.totals.bytes += outcome.growth.bytes;
        self.totals.ce_bytes += outcome.growth.ce_bytes;
        self.totals.refused += outcome.growth.refused;
        self.pose = outcome.pose.or(self.pose);
        let lost = self.flow.sender().stats().lost;
        self.path.handle(outcome, lost);
        let Some(relation) = self.flow.sender().clock().relation() else {
            return;
        };
        let acknowledged = outcome.acknowledged.iter().filter(|p| !p.is_repeated);
        let newest = acknowledged.max_by_key(|packet| packet.number);
        if let Some((packet, arrived)) = newest.and_then(|p| Some((p, p.arrived?))) {
            let one_way = relation.to_local(arrived).saturating_since(packet.sent);
            self.one_way = Some(one_way);
            let least = self
                .least_one_way
                .map_or(one_way, |least| least.min(one_way));
            self.least_one_way = Some(least);
        }
    }

    pub(super) fn status(&self, session: u32) -> ViewerStatus {
        let (control, sender) = (self.flow.control(), self.flow.sender());
        let queue = self.one_way.zip(self.least_one_way);
        ViewerStatus {
            session,
            address: self.address,
            target: control.target(),
            pacing_rate: control.pacing_rate(),
            rtt: control.smoothed_rtt(),
            one_way: self.one_way,
            queue: queue.map(|(one_way, least)| one_way.saturating_sub(least)),
            in_flight: sender.in_flight(),
            waiting: sender.waiting(),
            received: self.totals,
            is_app_limited: self.flow.is_app_limited(),
            is_kernel_paced: self.flow.is_kernel_paced(),
            refusals: control.refusals(),
            sender: *sender.stats(),
        }
    }
}

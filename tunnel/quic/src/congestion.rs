use crate::bbr::BbrConfig;
use crate::live::Live;
use crate::sent_packets::SentPackets;
use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;
type Factory = Arc<dyn ControllerFactory + Send + Sync>;

/// The congestion control of a connection: a wrapper around a controller that keeps [`Live`]
/// figures up to date and lets a silent path probe.
#[derive(Clone)]
pub struct Congestion {
    inner: Factory,
    live: Arc<Live>,
    clock: Clock,
}

impl Congestion {
    /// Uses [`Bbr`](crate::Bbr); `seed` is the seed of its random number generator.
    pub fn bbr(live: Arc<Live>, seed: u64) -> Self {
        Congestion::new(Arc::new(BbrConfig { seed }), live, Instant::now)
    }

    /// Uses another kind of controller or another clock.
    pub fn new(
        inner: Factory,
        live: Arc<Live>,
        clock: impl Fn() -> Instant + Send + Sync + 'static,
    ) -> Self {
        Congestion {
            inner,
            live,
            clock: Arc::new(clock),
        }
    }
}

impl ControllerFactory for Congestion {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.inner).build(now, current_mtu);
        self.live.set_packet_size(current_mtu);
        let controller = Probing {
            inner,
            live: Arc::clone(&self.live),
            clock: Arc::clone(&self.clock),
            newest_acknowledged: None,
            sent: SentPackets::default(),
        };
        controller.publish();
        Box::new(controller)
    }
}

impl fmt::Debug for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Congestion")
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

/// The controller of one network path of a connection. After a migration the old path's controller
/// still exists for a while, but the figures of the new one are published as soon as the new path
/// is used.
struct Probing {
    inner: Box<dyn Controller>,
    live: Arc<Live>,
    clock: Clock,
    /// When the newest packet was sent that is in the acknowledgement being processed.
    newest_acknowledged: Option<Instant>,
    sent: SentPackets,
}

impl Probing {
    fn publish(&self) {
        let metrics = self.inner.metrics();
        self.live
            .set_window(self.inner.window(), metrics.bandwidth_estimate);
    }
}

impl Controller for Probing {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.inner.on_sent(now, bytes, largest_pn);
        self.publish();
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.live.on_sent(now, bytes);
        self.sent.on_sent(pn, bytes);
        self.inner.on_packet_sent(now, bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {
        self.inner.on_cwnd_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.newest_acknowledged = self.newest_acknowledged.max(Some(sent));
        self.sent.on_fate(pn, true);
        self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        self.publish();
        self.sent.settle(&mut self.live.sizes());
        self.live
            .on_acknowledged(now, self.newest_acknowledged.take(), in_flight);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        if is_ecn {
            self.live.on_ecn_mark();
        }
        self.inner.on_congestion_event(
            now,
            sent,
            is_persistent_congestion,
            is_ecn,
            lost_bytes,
            largest_lost_pn,
        );
        self.publish();
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        self.live.on_lost(lost_bytes);
        self.sent.on_fate(pn, false);
        self.inner.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.live.sizes().restart();
        self.inner.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
        self.live.set_packet_size(new_mtu);
        self.publish();
    }

    fn on_ack_frequency_update(
        &mut self,
        ack_eliciting_threshold: u64,
        requested_max_ack_delay: std::time::Duration,
    ) {
        self.inner
            .on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        self.live.window_at((self.clock)())
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Probing {
            inner: self.inner.clone_box(),
            live: Arc::clone(&self.live),
            clock: Arc::clone(&self.clock),
            newest_acknowledged: self.newest_acknowledged,
            sent: SentPackets::default(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}

impl fmt::Debug for Probing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probing")
            .field("inner", &self.inner)
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

use super::cubic::CubicWindow;
use super::prague::PragueWindow;
use super::segment::{Acknowledgement, Segment};
use super::window::{Acknowledged, PACKET, Window};
use hawser_congestion::{Acked, Arrived, Confirmed, Feedback, LossDetector, Rtt, SentPackets};
use hawser_units::{Ecn, Instant};
use std::time::Duration;

/// The lowest retransmission timeout (Linux).
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(200);

/// The time for which a paced sender may send as one burst.
const BURST: Duration = Duration::from_micros(250);

/// The sender of a bulk flow.
#[derive(Debug, Clone)]
pub struct Sender<W> {
    window: W,
    sent: SentPackets,
    losses: LossDetector,
    rtt: Rtt,
    next_number: u64,
    next_send: Instant,
    recovers_at: u64,
    timer_began: Instant,
    timeouts: u32,
}

impl Sender<PragueWindow> {
    /// Creates a flow that behaves as TCP Prague.
    pub fn prague() -> Self {
        Sender::new(PragueWindow::default())
    }
}

impl Sender<CubicWindow> {
    /// Creates a flow that behaves as TCP CUBIC.
    pub fn cubic() -> Self {
        Sender::new(CubicWindow::default())
    }
}

impl<W: Window> Sender<W> {
    /// Creates a flow with a window of its own.
    pub fn new(window: W) -> Self {
        Sender {
            window,
            sent: SentPackets::default(),
            losses: LossDetector::default(),
            rtt: Rtt::default(),
            next_number: 1,
            next_send: Instant::ZERO,
            recovers_at: 0,
            timer_began: Instant::ZERO,
            timeouts: 0,
        }
    }

    /// Returns the next segment, if the window and the pacing allow one.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        if now < self.next_send || self.is_window_full() {
            return None;
        }
        if self.sent.in_flight().0 == 0 {
            self.timer_began = now;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.sent.insert(now, number, PACKET);
        self.next_send = self.next_send.max(now - BURST) + self.gap();
        Some(Segment {
            number,
            size: PACKET,
            ecn: self.window.ecn(),
        })
    }

    /// Processes an acknowledgement.
    pub fn handle_acknowledgement(&mut self, now: Instant, acknowledgement: Acknowledgement) {
        let is_limiting = self.is_window_full();
        let acked = [Acked {
            number: acknowledgement.number,
            held: Duration::ZERO,
            ecn: acknowledgement.ecn,
        }];
        let confirmed = self.confirm(now, &acked, &[]);
        let Some(newest) = confirmed.newest().copied() else {
            return;
        };
        self.timer_began = now;
        self.timeouts = 0;
        self.rtt.add(now, newest.rtt(), newest.rtt());
        self.losses.handle_arrivals(&confirmed);
        let acknowledged = self.acknowledged(now, &newest, is_limiting);
        self.window.handle_acknowledged(&acknowledged);
        self.detect_losses(now);
    }

    /// Returns when [`handle_timeout`](Sender::handle_timeout) or
    /// [`poll_transmit`](Sender::poll_transmit) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let paced = (!self.is_window_full()).then_some(self.next_send);
        let losses = self.losses.poll_timeout(&self.sent, self.reordering_rtt());
        let waiting = self.sent.in_flight().0 > 0;
        let silence = waiting.then(|| self.timer_began + self.retransmission_timeout());
        [paced, losses, silence].into_iter().flatten().min()
    }

    /// Detects losses and silence. Does nothing before they are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.detect_losses(now);
        let due = self.timer_began + self.retransmission_timeout();
        if self.sent.in_flight().0 == 0 || now < due {
            return;
        }
        let overdue: Vec<u64> = self.sent.overdue(now).collect();
        self.confirm(now, &[], &overdue);
        self.window.handle_timeout(now);
        self.recovers_at = self.next_number;
        self.timer_began = now;
        self.timeouts = (self.timeouts + 1).min(6);
    }

    /// Returns the congestion window.
    pub fn window(&self) -> &W {
        &self.window
    }

    /// Returns the smoothed round-trip time.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    fn acknowledged(&self, now: Instant, segment: &Arrived, is_limiting: bool) -> Acknowledged {
        Acknowledged {
            now,
            segments: 1.0,
            marked: if segment.ecn == Ecn::Ce { 1.0 } else { 0.0 },
            newest: segment.number,
            newest_sent: self.next_number - 1,
            rtt: segment.rtt(),
            smoothed_rtt: self.rtt.smoothed_or_assumed(),
            is_limiting,
        }
    }

    fn detect_losses(&mut self, now: Instant) {
        let lost = self.losses.lost(now, &self.sent, self.reordering_rtt());
        let Some(newest) = lost.last().copied() else {
            return;
        };
        self.confirm(now, &[], &lost);
        if newest >= self.recovers_at {
            self.recovers_at = self.next_number;
            self.window.handle_loss(now);
        }
    }

    fn confirm(&mut self, now: Instant, acked: &[Acked], lost: &[u64]) -> Confirmed {
        self.sent.confirm(&Feedback {
            now,
            reported: now,
            acked,
            lost,
            abandoned: &[],
            is_answer: true,
            app_limited: false,
        })
    }

    fn is_window_full(&self) -> bool {
        self.sent.in_flight().0 as f64 + PACKET.0 as f64 > self.window.segments() * PACKET.0 as f64
    }

    /// Returns the time from one segment to the next.
    fn gap(&self) -> Duration {
        let Some(rtt) = self.rtt.smoothed() else {
            return Duration::ZERO;
        };
        let per_rtt = self.window.segments() * self.window.pacing_gain();
        rtt.div_f64(per_rtt.max(0.1))
    }

    fn reordering_rtt(&self) -> Duration {
        self.rtt.smoothed_or_assumed()
    }

    fn retransmission_timeout(&self) -> Duration {
        let timeout = (self.rtt.smoothed_or_assumed() * 3).max(SHORTEST_TIMEOUT);
        timeout * (1 << self.timeouts)
    }
}

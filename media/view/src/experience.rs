//! The experience of a viewer, reported every second to the agent of this machine.

use hawser_experience::{Experience, Packet, Report, Subject};
use hawser_io::reporter::{REPORT_EVERY, Reporter};
use hawser_qoe::stall_threshold;
use hawser_units::Instant;
use std::path::PathBuf;
use std::time::Duration;

/// The experience since the last report.
#[derive(Debug)]
pub(crate) struct Experienced {
    reporter: Reporter,
    frames: u32,
    late: u32,
    /// When the newest frame came, and the mean interval at which frames come. `None` before the first frame.
    newest: Option<(Instant, Duration)>,
    /// The time up to which stalls are counted.
    counted: Instant,
    stalled: Duration,
    delay: Option<Duration>,
}

impl Experienced {
    /// Creates an experience that is reported at this socket.
    pub(crate) fn new(socket: PathBuf) -> Self {
        Experienced {
            reporter: Reporter::new(socket),
            frames: 0,
            late: 0,
            newest: None,
            counted: Instant::ZERO,
            stalled: Duration::ZERO,
            delay: None,
        }
    }

    /// Records a frame that can be shown. `interval` is the time from capture to capture and `delay` that since the
    /// capture, if they are known. It is late if it ends a stall.
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        interval: Option<Duration>,
        delay: Option<Duration>,
    ) {
        let is_late = self.count_stall(now);
        self.frames += 1;
        self.late += u32::from(is_late);
        self.delay = delay.or(self.delay);
        self.newest = Some((now, interval.unwrap_or_default()));
    }

    /// Records frames that arrived too late to be shown, and others of which a part did.
    pub(crate) fn handle_late(&mut self, frames: u64, parts: u64) {
        let [frames, parts] = [frames, parts].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        self.frames = self.frames.saturating_add(frames);
        self.late = self
            .late
            .saturating_add(frames.saturating_add(parts))
            .min(self.frames);
    }

    /// Forgets when the newest frame came: none is expected now.
    pub(crate) fn handle_pause(&mut self) {
        self.newest = None;
    }

    /// Reports, if a second has passed, on the flow that carries such packets. Nothing is reported before the first frame.
    pub(crate) fn handle_timeout(&mut self, now: Instant, packet: impl FnOnce() -> Option<Packet>) {
        if now < self.reporter.next_at() {
            return;
        }
        self.count_stall(now);
        let has_experienced = self.frames > 0 || !self.stalled.is_zero();
        let packet = packet().filter(|_| has_experienced);
        let experience = Experience {
            frames: Some(std::mem::take(&mut self.frames)),
            late: Some(std::mem::take(&mut self.late)),
            stalled_ms: Some(millis(std::mem::take(&mut self.stalled))),
            delay_ms: self.delay.take().map(millis),
            rate_bps: None,
        };
        match packet {
            Some(packet) => self.reporter.report(
                now,
                &Report {
                    subject: Subject::Packet(packet),
                    experience,
                },
            ),
            None => self.reporter.postpone(now + REPORT_EVERY),
        }
    }

    /// Counts the time without a frame up to now, if it is a stall. Returns whether it is one.
    fn count_stall(&mut self, now: Instant) -> bool {
        let Some((newest, interval)) = self.newest else {
            return false;
        };
        let is_stall = now.saturating_since(newest) > stall_threshold(interval);
        if is_stall {
            self.stalled += now.saturating_since(newest.max(self.counted));
            self.counted = now;
        }
        is_stall
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experience::Protocol;
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn packet() -> Option<Packet> {
        Some(Packet {
            protocol: Protocol::Udp,
            source: "192.0.2.1:14748".parse().unwrap(),
            destination: "192.0.2.2:5".parse().unwrap(),
        })
    }

    /// Passes frames at these times, in milliseconds, and lets time pass until `end`. Returns the reports.
    fn reports(frames: &[(u64, bool)], end: u64) -> Vec<Experience> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.sock");
        let agent = UnixListener::bind(&path).unwrap();
        let mut experienced = Experienced::new(path);
        let mut frames = frames.iter().peekable();
        for now in 0..=end {
            while let Some((_, is_whole)) = frames.next_if(|(millis, _)| *millis <= now) {
                let (interval, delay) = (Duration::from_millis(33), Duration::from_millis(80));
                match is_whole {
                    true => experienced.handle_frame(at(now), Some(interval), Some(delay)),
                    false => experienced.handle_late(1, 0),
                }
            }
            experienced.handle_timeout(at(now), packet);
        }
        drop(experienced);
        agent.set_nonblocking(true).unwrap();
        let mut text = String::new();
        if let Ok((mut stream, _)) = agent.accept() {
            UnixStream::read_to_string(&mut stream, &mut text).unwrap();
        }
        let lines = text.lines();
        lines
            .map(|line| Report::parse(line.as_bytes()).unwrap().experience)
            .collect()
    }

    #[test]
    fn frames_in_time_are_no_stall() {
        let frames: Vec<_> = (1..90).map(|number| (number * 33, true)).collect();
        let reports = reports(&frames, 2_900);
        assert_eq!(reports.len(), 2, "{reports:?}");
        for report in &reports {
            assert!(
                report.frames >= Some(30) && report.delay_ms == Some(80),
                "{report:?}"
            );
            assert_eq!((report.late, report.stalled_ms), (Some(0), Some(0)));
        }
    }

    #[test]
    fn a_stall_is_counted_once_and_while_it_lasts() {
        let reports = reports(&[(500, true), (2_700, true), (2_850, true)], 3_100);
        let stalled: Vec<_> = reports.iter().map(|report| report.stalled_ms).collect();
        assert_eq!(stalled, [Some(500), Some(1_000), Some(700)], "{reports:?}");
        let late: Vec<_> = reports.iter().map(|report| report.late).collect();
        assert_eq!(late, [Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn frames_that_cannot_be_shown_are_late_and_end_no_stall() {
        let reports = reports(&[(10, true), (43, false), (76, false)], 1_000);
        assert_eq!(reports.len(), 1);
        assert_eq!((reports[0].frames, reports[0].late), (Some(3), Some(2)));
        assert_eq!(reports[0].stalled_ms, Some(990));
    }

    #[test]
    fn nothing_is_reported_before_the_first_frame() {
        assert_eq!(reports(&[], 5_000), []);
    }
}

//! The CSV files of a publisher that pushes.

use crate::encode::Sizes;
use crate::lines::Lines;
use hawser_objects::ViewerStatus;
use hawser_units::{ByteSize, Instant};
use std::path::Path;
use std::time::Duration;

/// The frames that were encoded.
pub(crate) struct FrameLog(Lines);

impl FrameLog {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let head = "captured_ns,points,target_bytes,bytes,base_bytes,encode_us";
        Lines::create(path, head).map(FrameLog)
    }

    pub(crate) fn write(
        &mut self,
        captured: Instant,
        points: usize,
        sizes: Sizes,
        (took, target): (Duration, ByteSize),
    ) -> anyhow::Result<()> {
        let Sizes { bytes, base } = sizes;
        self.0.write(format_args!(
            "{},{points},{},{bytes},{base},{}",
            captured.as_nanos(),
            target.0,
            took.as_micros()
        ))
    }
}

/// The states of the flows to viewers.
pub(crate) struct StatsLog(Lines);

impl StatsLog {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let head = "time_ns,viewer,target_mbps,pacing_mbps,rtt_ms,one_way_ms,queue_ms,\
                    in_flight_bytes,waiting_bytes,received_bytes,ce_bytes,lost,repeated,\
                    objects_delivered,objects_dropped,app_limited,kernel_paced";
        Lines::create(path, head).map(StatsLog)
    }

    pub(crate) fn write(&mut self, now: Instant, viewers: &[ViewerStatus]) -> anyhow::Result<()> {
        let ms = |time: Option<Duration>| {
            time.map_or_else(String::new, |time| {
                format!("{:.3}", time.as_secs_f64() * 1e3)
            })
        };
        for viewer in viewers {
            self.0.write(format_args!(
                "{},{},{:.3},{:.3},{},{},{},{},{},{},{},{},{},{},{},{},{}",
                now.as_nanos(),
                viewer.session,
                viewer.target.mbps(),
                viewer.pacing_rate.mbps(),
                ms(viewer.rtt),
                ms(viewer.one_way),
                ms(viewer.queue),
                viewer.in_flight.0,
                viewer.waiting.0,
                viewer.received.bytes,
                viewer.received.ce_bytes,
                viewer.sender.lost,
                viewer.sender.repeated,
                viewer.sender.delivered,
                viewer.sender.dropped(),
                u8::from(viewer.is_app_limited),
                u8::from(viewer.is_kernel_paced)
            ))?;
        }
        Ok(())
    }
}

//! Frames at known rates, to measure the emulator with.

use super::open;
use anyhow::{Context, Result, ensure};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::{self, Port};
use hawser_units::{Bitrate, ByteSize, Instant};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A frame on the wire: 1400 bytes of packet behind the Ethernet header.
pub const FRAME: ByteSize = ByteSize(1414);

const ETHERNET: [u8; 14] = [
    0x02, 0, 0, 0, 0, 2, // Locally administered addresses that no device has.
    0x02, 0, 0, 0, 0, 1, //
    0x88, 0xb5, // The EtherType for local experiments (IEEE 802).
];

/// Sends frames at an even rate into each device, for `duration`. Each frame carries its
/// transmission time.
pub fn send(namespace: &Namespace, load: &[(String, Bitrate)], duration: Duration) -> Result<()> {
    /// The polling interval. It is well below the 112 us between the frames of 100 Mb/s, so that
    /// those are sent one by one.
    const TICK: Duration = Duration::from_micros(40);

    namespace.enter()?;
    let open = |(device, rate): &(String, Bitrate)| anyhow::Ok((open(device)?, *rate, 0));
    let mut flows = load.iter().map(open).collect::<Result<Vec<_>>>()?;
    ring::rise_to_realtime().context("cannot get real-time priority for the load")?;

    let begin = ring::now();
    let mut elapsed = Duration::ZERO;
    while elapsed < duration {
        for (port, rate, sent) in &mut flows {
            let due = (elapsed.as_secs_f64() / rate.time_to_send(FRAME).as_secs_f64()) as u64;
            send_frames(port, due - *sent)?;
            *sent = due;
        }
        ring::wait(&[], Some(TICK))?;
        elapsed = ring::now().saturating_since(begin);
    }
    Ok(())
}

fn send_frames(port: &Port, count: u64) -> Result<()> {
    let frames: Vec<_> = (0..count).map(|_| stamped_frame(ring::now())).collect();
    port.sender.send(&frames).or_else(|(refused, error)| {
        Err(error).with_context(|| format!("{refused} frames of the load could not be sent"))
    })
}

/// The frames that arrived on one device.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    frames: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    /// The time from the time stamp in each frame to its arrival.
    pub delays: Vec<Duration>,
}

impl Arrivals {
    /// Returns the rate from the first arrival to the last.
    pub fn rate(&self) -> Bitrate {
        let (Some(first), Some(last)) = (self.first, self.last) else {
            return Bitrate::from_bps(0);
        };
        Bitrate::average(
            ByteSize((self.frames - 1) * FRAME.0),
            last.saturating_since(first),
        )
    }

    /// Records the frames with a time stamp that have arrived on a device.
    fn receive(&mut self, port: &mut Port) {
        port.receiver.receive(|frame| {
            if let Ok(frame) = frame
                && let Some(sent) = time_stamp(&frame.to_vec())
            {
                self.record(frame.arrived(), sent);
            }
        });
    }

    fn record(&mut self, arrived: Instant, sent: Instant) {
        self.frames += 1;
        self.first.get_or_insert(arrived);
        self.last = Some(arrived);
        self.delays.push(arrived.saturating_since(sent));
    }
}

/// Receives frames until `ended` is set.
pub fn receive(
    namespace: &Namespace,
    devices: &[String],
    ready: impl FnOnce(),
    ended: &AtomicBool,
) -> Result<Vec<Arrivals>> {
    /// The polling interval. The ring holds many times the frames that arrive in this time.
    const TICK: Duration = Duration::from_millis(2);

    namespace.enter()?;
    let ports: Result<Vec<_>> = devices.iter().map(|device| open(device)).collect();
    let mut ports = ports?;
    let mut arrivals = vec![Arrivals::default(); ports.len()];
    ring::rise_to_realtime().context("cannot get real-time priority for the receiver")?;
    ready();
    while !ended.load(Ordering::Relaxed) {
        for (port, arrivals) in ports.iter_mut().zip(&mut arrivals) {
            arrivals.receive(port);
        }
        ring::wait(&[], Some(TICK))?;
    }
    check_drops(&ports, devices)?;
    Ok(arrivals)
}

fn check_drops(ports: &[Port], devices: &[String]) -> Result<()> {
    for (port, device) in ports.iter().zip(devices) {
        ensure!(
            port.receiver.drops()? == 0,
            "the receiver on {device} did not keep up"
        );
    }
    Ok(())
}

fn stamped_frame(now: Instant) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME.0 as usize);
    frame.extend(ETHERNET);
    frame.extend(now.as_nanos().to_be_bytes());
    frame.resize(FRAME.0 as usize, 0);
    frame
}

fn time_stamp(frame: &[u8]) -> Option<Instant> {
    let (stamp, _) = frame.strip_prefix(&ETHERNET)?.split_first_chunk()?;
    Some(Instant::from_nanos(u64::from_be_bytes(*stamp)))
}

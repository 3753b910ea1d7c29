//! A stream like that of `hawser view`: requests at a constant rate in one direction and frames in
//! the other, on one connection.

use super::machines::Machines;
use crate::support::wait;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const ADDRESS: &str = "10.99.0.1:14748";

/// Interval of thirty frames per second.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / 30);

/// Size of a frame: several trains of segments.
const FRAME_BYTES: usize = 150_000;

/// A stream that runs until this is dropped.
pub(super) struct Stream {
    arrivals: Arc<Mutex<Vec<Instant>>>,
    ended: Arc<AtomicBool>,
}

impl Stream {
    pub(super) fn start(machines: &Machines) -> Self {
        let listener = machines
            .publisher
            .namespace
            .run(|| TcpListener::bind(ADDRESS).unwrap())
            .unwrap();
        thread::spawn(move || publish(listener.accept().unwrap().0));
        let connection = machines
            .viewer
            .namespace
            .run(|| TcpStream::connect(ADDRESS).unwrap())
            .unwrap();
        connection.set_nodelay(true).unwrap();
        let stream = Stream {
            arrivals: Arc::default(),
            ended: Arc::default(),
        };
        let (requests, ended) = (connection.try_clone().unwrap(), stream.ended.clone());
        thread::spawn(move || request(requests, &ended));
        let arrivals = stream.arrivals.clone();
        thread::spawn(move || view(connection, &arrivals));
        stream.await_frames(30);
        stream
    }

    /// Returns the largest gap between two frames, from before `act` until `frames` more have
    /// arrived.
    pub(super) fn largest_gap(&self, frames: usize, act: impl FnOnce()) -> Duration {
        let first = self.count().checked_sub(1).expect("the stream flows");
        act();
        self.await_frames(frames);
        let arrivals = self.arrivals.lock().unwrap();
        arrivals[first..]
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .expect("frames arrived")
    }

    /// Waits until `frames` more have arrived.
    pub(super) fn await_frames(&self, frames: usize) {
        let before = self.count();
        wait("frames", || (self.count() >= before + frames).then_some(()));
    }

    fn count(&self) -> usize {
        self.arrivals.lock().unwrap().len()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Sends requests at a constant rate. The other two threads stop when the connection is closed.
fn request(mut connection: TcpStream, ended: &AtomicBool) {
    let mut next = Instant::now();
    while !ended.load(Ordering::Relaxed) && connection.write_all(&[1]).is_ok() {
        next += INTERVAL;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let _ = connection.shutdown(std::net::Shutdown::Both);
}

fn publish(mut connection: TcpStream) {
    connection.set_nodelay(true).unwrap();
    let frame = vec![7; FRAME_BYTES];
    while connection.read_exact(&mut [0]).is_ok() && connection.write_all(&frame).is_ok() {}
}

fn view(mut connection: TcpStream, arrivals: &Mutex<Vec<Instant>>) {
    let mut frame = vec![0; FRAME_BYTES];
    while connection.read_exact(&mut frame).is_ok() {
        arrivals.lock().unwrap().push(Instant::now());
    }
}

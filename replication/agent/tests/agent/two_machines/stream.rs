//! A stream like that of `hawser view`: requests at a constant rate in one direction and frames in
//! the other, on one connection.

use super::machines::Machines;
use crate::support::wait;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ADDRESS: &str = "10.99.0.1:14748";

/// Interval of thirty frames per second.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / 30);

/// Size of a frame: several trains of segments.
const FRAME_BYTES: usize = 150_000;

/// A stream that runs until this is dropped.
pub(super) struct Stream {
    /// The number of frames that arrived.
    arrived: Arc<AtomicUsize>,
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
            arrived: Arc::default(),
            ended: Arc::default(),
        };
        let (requests, ended) = (connection.try_clone().unwrap(), stream.ended.clone());
        thread::spawn(move || request(requests, &ended));
        let arrived = stream.arrived.clone();
        thread::spawn(move || view(connection, &arrived));
        stream.await_frames(10);
        stream
    }

    /// Waits until `frames` more have arrived.
    pub(super) fn await_frames(&self, frames: usize) {
        let before = self.count();
        wait("frames", || (self.count() >= before + frames).then_some(()));
    }

    fn count(&self) -> usize {
        self.arrived.load(Ordering::Relaxed)
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

fn view(mut connection: TcpStream, arrived: &AtomicUsize) {
    let mut frame = vec![0; FRAME_BYTES];
    while connection.read_exact(&mut frame).is_ok() {
        arrived.fetch_add(1, Ordering::Relaxed);
    }
}

//! A viewer that requests a broadcast as a relay does.

use super::{LONG, secret};
use hawser_objects::{EndReason, ReceiverConfig, ReceiverEvent, Viewer, ViewerConfig, ViewerEvent};
use hawser_packets::media::ObjectId;
use hawser_units::{Ecn, Instant};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::timeout;

pub(crate) struct Watching {
    viewer: Viewer,
    socket: UdpSocket,
    started: std::time::Instant,
    sessions: u8,
    pub(crate) objects: BTreeMap<ObjectId, Vec<u8>>,
    pub(crate) ended: Vec<EndReason>,
}

impl Watching {
    /// Requests the broadcast until it is available, and the tracks of a publisher.
    pub(crate) async fn connect(ingest: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(ingest).await.unwrap();
        Watching {
            viewer: viewer(0),
            socket,
            started: std::time::Instant::now(),
            sessions: 0,
            objects: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_secs(3600) + self.started.elapsed()
    }

    pub(crate) const fn sessions(&self) -> u8 {
        self.sessions
    }

    /// Watches until a condition holds.
    pub(crate) async fn until(&mut self, is_met: impl Fn(&Self) -> bool) {
        let watching = async {
            while !is_met(self) {
                self.step().await;
            }
        };
        timeout(LONG, watching).await.unwrap();
    }

    /// Watches until a session is open and the selection has reached the other end.
    pub(crate) async fn until_open(&mut self) {
        let sessions = self.sessions;
        self.until(|watching| watching.sessions > sessions).await;
    }

    /// Watches for a time.
    pub(crate) async fn watch(&mut self, time: Duration) {
        let until = std::time::Instant::now() + time;
        while std::time::Instant::now() < until {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        let now = self.now();
        self.viewer.handle_timeout(now);
        while let Some(message) = self.viewer.poll_transmit(now) {
            self.socket.send(&message).await.unwrap();
        }
        let mut buffer = [0; 2000];
        let received = timeout(Duration::from_millis(5), self.socket.recv(&mut buffer)).await;
        if let Ok(received) = received {
            let datagram = &buffer[..received.unwrap()];
            let _ = self
                .viewer
                .handle_datagram(self.now(), datagram, Ecn::NotEct);
        }
        while let Some(event) = self.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(announcement) => {
                    let tracks = announcement.tracks.iter().map(|t| (t.alias, t.layers));
                    self.viewer.subscribe(self.now(), tracks.collect());
                    self.sessions += 1;
                }
                ViewerEvent::Ended(reason) => {
                    self.ended.push(reason);
                    self.viewer = viewer(self.sessions);
                }
            }
        }
        while let Some(event) = self.viewer.poll_media() {
            if let ReceiverEvent::Object(object) = event {
                let earlier = self.objects.insert(object.id, object.bytes());
                assert_eq!(earlier, None, "each object once");
            }
        }
    }
}

fn viewer(session: u8) -> Viewer {
    let config = ViewerConfig {
        receiver: ReceiverConfig {
            objects: 1000,
            // The times of capture are not those of a clock.
            grace: Duration::from_secs(60),
            ..ReceiverConfig::default()
        },
        ..ViewerConfig::default()
    };
    Viewer::new(config, secret(), [session; 16])
}

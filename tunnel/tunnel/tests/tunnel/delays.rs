//! Urgent packets over two uplinks at once, and the measured delays.

use crate::rig::{End, HOST4, Rig, TIMEOUT, UPLINKS};
use hawser_tunnel::status::Interval;
use socket2::SockRef;
use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Expedited Forwarding, as a TOS byte.
const EF: u32 = 46 << 2;

/// Numbered datagrams from the client to the host.
struct Stream {
    sender: UdpSocket,
    receiver: UdpSocket,
    sent: u32,
    /// How often each number arrived.
    arrived: BTreeMap<u32, u32>,
}

impl Stream {
    fn new(rig: &Rig, tos: u32) -> Stream {
        let host: IpAddr = HOST4.parse().unwrap();
        let receiver = rig
            .host
            .run(|| UdpSocket::bind((host, 0)).unwrap())
            .unwrap();
        receiver.set_nonblocking(true).unwrap();
        let sender = rig
            .client
            .run(|| UdpSocket::bind("0.0.0.0:0").unwrap())
            .unwrap();
        SockRef::from(&sender).set_tos_v4(tos).unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        Stream {
            sender,
            receiver,
            sent: 0,
            arrived: BTreeMap::new(),
        }
    }

    /// Sends a packet every 5 ms.
    fn send(&mut self, packets: u32) {
        for _ in 0..packets {
            self.sender.send(&self.sent.to_be_bytes()).unwrap();
            self.sent += 1;
            thread::sleep(Duration::from_millis(5));
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut bytes = [0; 4];
        while let Ok(4) = self.receiver.recv(&mut bytes) {
            *self.arrived.entry(u32::from_be_bytes(bytes)).or_default() += 1;
        }
    }

    /// Waits until each packet has arrived, and checks that none did twice.
    fn check(&mut self) {
        let start = Instant::now();
        while self.arrived.len() < self.sent as usize {
            assert!(
                start.elapsed() < TIMEOUT,
                "{} of {}",
                self.arrived.len(),
                self.sent
            );
            thread::sleep(Duration::from_millis(20));
            self.receive();
        }
        assert!(self.arrived.values().all(|count| *count == 1));
    }
}

fn duplicated(client: &End) -> u64 {
    client.session().duplicated_packets
}

#[test]
fn urgent_packets_survive_a_dying_uplink() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "[coding]\nduplicate = \"urgent\"\n");
    let client = rig.client("");
    let mut other = Stream::new(&rig, 0);
    other.send(50);
    other.check();
    let mut urgent = Stream::new(&rig, EF);
    urgent.send(100);
    client.until("they are counted", |status| {
        status.sessions[0].duplicated_packets >= 90
    });
    rig.blackhole("wan0", true);
    urgent.send(200);
    urgent.check();
    assert!(duplicated(&client) <= 300, "the others are sent once");
}

#[test]
fn without_the_key_urgent_packets_are_sent_once() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let mut urgent = Stream::new(&rig, EF);
    urgent.send(100);
    urgent.check();
    client.until("they are counted", |status| {
        status.sessions[0].sent_packets >= 100
    });
    assert_eq!(duplicated(&client), 0);
}

/// Limits the uplinks to 2 Mb/s from the client to the servers.
fn limit_uplinks(rig: &Rig) {
    for uplink in UPLINKS {
        let mut shaper = rig.client.command("tc").unwrap();
        let limit = format!("qdisc add dev {uplink} root tbf rate 2mbit burst 5kb latency 200ms");
        assert!(shaper.args(limit.split(' ')).status().unwrap().success());
    }
}

/// Returns an interval that fulfils `wanted`; calls `send` until there is one.
fn interval(client: &End, mut send: impl FnMut(), wanted: impl Fn(&Interval) -> bool) -> Interval {
    let start = Instant::now();
    loop {
        send();
        let interval = client.session().interval;
        if let Some(interval) = interval.filter(&wanted) {
            return interval;
        }
        assert!(start.elapsed() < TIMEOUT, "{interval:?}");
    }
}

#[test]
fn delays_are_shown_with_the_share_that_arrived() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    limit_uplinks(&rig);
    let client = rig.client("report_every_s = 1");
    let mut stream = Stream::new(&rig, 0);
    let light = |interval: &Interval| interval.delay_p50_ms.is_some();
    let light = interval(&client, || stream.send(100), light);
    stream.check();
    assert!(light.delay_p99_ms >= light.delay_p50_ms, "{light:?}");

    // 20 Mb/s, of which most wait, and are then dropped.
    let flood = [0; 1000];
    let send = || {
        for _ in 0..50 {
            for _ in 0..5 {
                // Fails while the device's queue is full.
                let _ = stream.sender.send(&flood);
            }
            thread::sleep(Duration::from_millis(2));
        }
    };
    let heavy = interval(&client, send, |interval| interval.delivered_ratio < 0.6);
    assert!(
        heavy.delay_p50_ms > light.delay_p50_ms,
        "{light:?}, {heavy:?}"
    );
}

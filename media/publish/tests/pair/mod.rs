//! A sender and a receiver in namespaces of their own, linked by a pair of veth devices.

#![allow(dead_code, reason = "each test uses a part")]

use hawser_congestion::{DepartureCheck, DepartureFinding};
use hawser_io::clock::monotonic;
use hawser_io::udp::{Departure, Left, UdpSocket};
use hawser_testbed::netns::Namespace;
use hawser_units::Ecn;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);

const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Pair {
    sender: Namespace,
    receiver: Namespace,
    pub(crate) receiving: UdpSocket,
    pub(crate) sending: UdpSocket,
    pub(crate) to: SocketAddr,
}

impl Pair {
    /// Creates a pair whose sender has departure times, and a queueing discipline as `tc` names it.
    pub(crate) fn create(name: &str, discipline: &str) -> Pair {
        let namespace = |role: &str| {
            let id = std::process::id();
            Namespace::create(format!("hawser-departures-{name}-{role}-{id}")).unwrap()
        };
        let (sender, receiver) = (namespace("sender"), namespace("receiver"));
        sender
            .ip(&format!(
                "link add eth0 type veth peer name eth0 netns {}\naddr add 192.0.2.1/24 dev eth0\nlink set eth0 up",
                receiver.name()
            ))
            .unwrap();
        receiver
            .ip("addr add 192.0.2.2/24 dev eth0\nlink set eth0 up")
            .unwrap();
        let bind = |address: &str| UdpSocket::bind(address.parse().unwrap()).unwrap();
        let receiving = receiver.run(|| bind("192.0.2.2:0")).unwrap();
        let mut sending = sender.run(|| bind("192.0.2.1:0")).unwrap();
        sending.allow_departure_times().unwrap();
        let pair = Pair {
            to: receiving.local_address().unwrap(),
            sender,
            receiver,
            receiving,
            sending,
        };
        pair.set_discipline(discipline);
        pair
    }

    /// Replaces the queueing discipline of the sender's device.
    pub(crate) fn set_discipline(&self, discipline: &str) {
        let mut tc = self.sender.command("tc").unwrap();
        tc.args(["qdisc", "replace", "dev", "eth0", "root"]);
        assert!(tc.args(discipline.split(' ')).status().unwrap().success());
    }

    /// Finds whether the kernel follows departure times, on a machine that may be too slow for that at first.
    pub(crate) fn find_on_a_slow_machine(&mut self) -> DepartureFinding {
        let until = monotonic() + TIMEOUT;
        loop {
            let finding = self.find();
            if finding != DepartureFinding::Late || until < monotonic() {
                return finding;
            }
        }
    }

    /// Sends datagrams until it is found whether the kernel follows departure times.
    pub(crate) fn find(&mut self) -> DepartureFinding {
        let mut check = DepartureCheck::default();
        let until = monotonic() + TIMEOUT;
        loop {
            let now = monotonic();
            if let Some(at) = check.poll_trial(now) {
                self.send(Departure {
                    at,
                    is_stamped: true,
                });
            }
            if let Some(finding) = check.poll_finding() {
                return finding;
            }
            assert!(now < until, "nothing found: {check:?}");
            self.sending.wait(Some(MS)).unwrap();
            while let Some(Left { planned, left, .. }) = self.sending.next_left().unwrap() {
                check.handle_left(monotonic(), planned, left);
            }
        }
    }

    /// Sends a datagram without a departure time.
    pub(crate) fn send_now(&self) {
        self.sending.send(self.to, Ecn::Ect1, b"now").unwrap();
    }

    pub(crate) fn send(&mut self, departure: Departure) {
        self.send_long(1200, departure);
    }

    /// Sends a datagram of so many bytes.
    pub(crate) fn send_long(&mut self, bytes: usize, departure: Departure) {
        let datagram = vec![0; bytes];
        let sent = self
            .sending
            .send_at(self.to, Ecn::Ect1, &datagram, departure);
        sent.unwrap();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for namespace in [&self.sender, &self.receiver] {
            let _ = namespace.delete();
        }
    }
}

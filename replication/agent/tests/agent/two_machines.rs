//! The guide's two machines: their traffic continues when their agents fail.

mod datagrams;
mod machines;
mod stream;

use crate::support::{self, wait};
use datagrams::Datagrams;
use machines::{Machine, Machines};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use stream::Stream;

/// The datagrams that a killed agent may take with it, of those of half a second.
const MAX_LOST_KILLED: u64 = datagrams::RATE_PPS as u64 / 2;

/// The datagrams that may be lost while routes change, of those of 150 ms.
const MAX_LOST: u64 = datagrams::RATE_PPS as u64 * 150 / 1000;

/// Number of frames per second.
const FRAMES_PER_SECOND: usize = 30;

/// A busy machine takes datagrams, too. What an agent loses it loses at each of so many attempts.
const ATTEMPTS: usize = 5;

/// A stream and datagrams between the machines.
struct Traffic {
    stream: Stream,
    datagrams: Datagrams,
}

impl Traffic {
    fn start(machines: &Machines) -> Self {
        Traffic {
            stream: Stream::start(machines),
            datagrams: Datagrams::between(machines),
        }
    }

    /// Returns how many datagrams are lost from before `act` until `frames` of the stream have arrived
    /// after it.
    fn lost(&self, frames: usize, act: impl FnOnce()) -> u64 {
        self.datagrams.lost(|| {
            self.stream.await_frames(3);
            act();
            self.stream.await_frames(frames);
        })
    }
}

/// Repeats `attempt` until no more than `limits` are lost, and asserts that this succeeds.
fn assert_loses<const N: usize>(
    limits: [u64; N],
    what: &str,
    mut attempt: impl FnMut() -> [u64; N],
) {
    let mut lost = vec![];
    let is_within = (0..ATTEMPTS).any(|_| {
        let counts = attempt();
        lost.push(counts);
        counts
            .iter()
            .zip(&limits)
            .all(|(lost, limit)| lost <= limit)
    });
    assert!(
        is_within,
        "{what}: lost {lost:?}, of which {limits:?} are allowed"
    );
}

/// Stops an agent, restarts it after `frames_away` frames, and asserts that the traffic continues.
fn assert_goes_on(traffic: &Traffic, machine: &mut Machine, signal: Signal, frames_away: usize) {
    let max_death = match signal {
        Signal::SIGKILL => MAX_LOST_KILLED,
        _ => MAX_LOST,
    };
    assert_loses(
        [max_death, MAX_LOST],
        "without an agent, at its return",
        || {
            let death = traffic.lost(frames_away, || machine.end(signal));
            assert!(
                !machine.ip("link show").contains(": hawser0:"),
                "the kernel has removed it"
            );
            let back = traffic.lost(FRAMES_PER_SECOND, || machine.start_again());
            [death, back]
        },
    );
}

#[test]
fn the_guides_stream_survives_a_killed_agent() {
    let mut machines = Machines::start(None);
    let traffic = Traffic::start(&machines);
    for machine in machines.both() {
        machine.await_copies();
        assert_goes_on(&traffic, machine, Signal::SIGKILL, 5 * FRAMES_PER_SECOND);
        let devices = machine.ip("-brief link show");
        let pairs = devices
            .lines()
            .filter(|device| device.starts_with("hawser-in"))
            .count();
        assert_eq!(pairs, 1, "the killed agent's pair is gone: {devices}");
    }
}

#[test]
fn the_guides_stream_survives_a_killed_agent_in_generic_xdp() {
    let mut machines = Machines::start(Some(true));
    let traffic = Traffic::start(&machines);
    for machine in machines.both() {
        assert_goes_on(&traffic, machine, Signal::SIGKILL, FRAMES_PER_SECOND);
    }
}

#[test]
fn the_guides_stream_survives_a_killed_agent_in_native_xdp() {
    let mut machines = Machines::start(Some(false));
    let traffic = Traffic::start(&machines);
    for machine in machines.both() {
        assert_goes_on(&traffic, machine, Signal::SIGKILL, FRAMES_PER_SECOND);
    }
}

/// Senders then make packets that fit all paths.
#[test]
fn the_interface_has_the_mtu_that_the_narrowest_uplink_allows() {
    let machines = Machines::start(None);
    let publisher = &machines.publisher;
    let await_mtu = |mtu| wait("the MTU", || (publisher.mtu() == Some(mtu)).then_some(()));
    for (uplink, interface) in [(1500, 1444), (1400, 1344), (1500, 1444)] {
        let change = format!("link set wlan0 mtu {uplink}");
        publisher.namespace.ip(&change).unwrap();
        await_mtu(interface);
    }
}

#[test]
fn the_guides_stream_survives_an_orderly_stop() {
    let mut machines = Machines::start(None);
    let traffic = Traffic::start(&machines);
    for machine in machines.both() {
        assert_goes_on(&traffic, machine, Signal::SIGTERM, FRAMES_PER_SECOND);
    }
}

#[test]
fn the_guides_stream_takes_the_uplink_left_without_agent() {
    let mut machines = Machines::start(None);
    let traffic = Traffic::start(&machines);
    for (cut, left) in [(0, "wlan0"), (1, "eth0")] {
        for which in [0, 1] {
            assert_loses([MAX_LOST_KILLED], left, || {
                machines.cut(cut);
                let death = lost_at_death(&traffic, machines.both()[which], left);
                machines.mend(cut);
                machines.both()[which].start_again();
                [death]
            });
        }
    }
}

#[test]
fn the_guides_stream_survives_a_restart_with_an_uplink_cut() {
    let mut machines = Machines::start(None);
    let traffic = Traffic::start(&machines);
    // As with routers that reply while nothing is forwarded behind them: the restarted agent sees
    // two working uplinks.
    machines
        .both()
        .into_iter()
        .for_each(|machine| machine.hold_next_hops());
    for (cut, left) in [(0, "wlan0"), (1, "eth0")] {
        for which in [0, 1] {
            assert_loses([MAX_LOST_KILLED, MAX_LOST], left, || {
                machines.cut(cut);
                let machine = &mut *machines.both()[which];
                let death = lost_at_death(&traffic, machine, left);
                let back = traffic.lost(3 * FRAMES_PER_SECOND, || machine.start_again());
                machines.mend(cut);
                traffic.stream.await_frames(FRAMES_PER_SECOND);
                [death, back]
            });
        }
    }
}

/// Kills an agent once its fallback is the remaining uplink, and returns how many datagrams are lost
/// until the traffic has continued on it.
fn lost_at_death(traffic: &Traffic, machine: &mut Machine, left: &str) -> u64 {
    wait("the uplink that is left", || {
        (machine.first_fallback()? == left).then_some(())
    });
    traffic.lost(FRAMES_PER_SECOND, || machine.end(Signal::SIGKILL))
}

#[test]
fn without_an_agent_a_lost_carrier_moves_the_stream() {
    let mut machines = Machines::start(None);
    machines
        .publisher
        .namespace
        .sysctl("net.ipv4.conf.all.ignore_routes_with_linkdown", "1")
        .unwrap();
    let stream = Stream::start(&machines);
    machines.publisher.end(Signal::SIGKILL);
    stream.await_frames(FRAMES_PER_SECOND);
    machines.unplug(0);
    stream.await_frames(FRAMES_PER_SECOND);
}

#[test]
fn the_guides_stream_survives_a_deleted_interface() {
    let machines = Machines::start(None);
    let traffic = Traffic::start(&machines);
    assert_loses([MAX_LOST_KILLED], "deleted", || {
        [traffic.lost(FRAMES_PER_SECOND, || {
            machines.publisher.ip("link delete hawser0");
            machines.publisher.await_copies();
        })]
    });
}

#[test]
fn what_another_program_changes_of_the_device_is_restored() {
    const PARTS: [(&str, &str); 5] = [
        (
            "address delete 10.99.0.1/32 dev lo",
            "address 10.99.0.1/32 dev lo",
        ),
        (
            "route delete 10.99.0.2/32 dev hawser0",
            "route 10.99.0.2/32 dev hawser0 ",
        ),
        (
            "route delete 10.99.0.2/32 dev wlan0",
            "route 10.99.0.2/32 via 198.51.100.2 dev wlan0 ",
        ),
        ("link set hawser0 mtu 1000", "device hawser0"),
        ("link delete hawser0", "device hawser0"),
    ];
    let machines = Machines::start(None);
    let machine = &machines.publisher;
    let routes = || machine.ip("route show proto 72").lines().count();
    for (change, name) in PARTS {
        wait("all routes", || (routes() == 3).then_some(()));
        let count = || {
            let deviations = machine.status().deviations.into_iter();
            let named = deviations.filter(|found| found.name.starts_with(name));
            let restored = named.filter(|found| found.restored);
            restored.map(|found| found.count).sum::<u64>()
        };
        let before = count();
        machine.namespace.ip(change).unwrap();
        wait(name, || (count() > before).then_some(()));
    }
    wait("all routes", || (routes() == 3).then_some(()));
    let addresses = machine.ip("address show dev lo");
    assert!(addresses.contains("10.99.0.1/32"), "{addresses}");
}

#[test]
fn what_takes_packets_off_the_device_is_named() {
    const TAKES: [(&str, &str, &str); 3] = [
        (
            "route add default via 192.0.2.2 table 51820\nrule add pref 100 lookup 51820",
            "rule del pref 100\nroute flush table 51820",
            "sends them by eth0",
        ),
        (
            "route add 10.99.0.2/32 via 192.0.2.2",
            "route del 10.99.0.2/32 via 192.0.2.2",
            "sends them by eth0",
        ),
        (
            "route add blackhole 10.99.0.2/32 metric 1",
            "route del blackhole 10.99.0.2/32 metric 1",
            "drops them",
        ),
    ];
    let machines = Machines::start(None);
    let machine = &machines.publisher;
    let routes = || machine.ip("route show proto 72").lines().count();
    wait("all routes", || (routes() == 3).then_some(()));
    let found = || {
        let mut deviations = machine.status().deviations.into_iter();
        deviations.find(|found| found.name == "packets to 10.99.0.2/32")
    };
    assert_eq!(found(), None);
    for (take, give_back, to) in TAKES {
        machine.namespace.ip(take).unwrap();
        wait(to, || {
            found().filter(|found| !found.restored && found.what.contains(to))
        });
        machine.namespace.ip(give_back).unwrap();
        wait("the device", || found().filter(|found| found.restored));
    }
}

#[test]
fn traffic_that_no_selector_matches_takes_an_uplink() {
    assert_others_take_an_uplink(&Machines::start_changed(None, |_, text| stream_alone(text)));
}

#[test]
fn packets_to_a_peer_that_no_flow_is_for_are_said() {
    let elsewhere = "destination = \"10.98.0.";
    let machines = Machines::start_changed(None, |_, text| {
        text.replace("destination = \"10.99.0.", elsewhere)
    });
    assert_others_take_an_uplink(&machines);
    let example = wait("an example", || machines.viewer.status().unselected);
    assert_eq!(example.example, "TCP port 14700 to 10.99.0.1");
    assert!(example.packets >= 20, "{example:?}");
}

#[test]
fn unreplicated_packets_take_no_uplink_without_a_route() {
    // The next hop of the preferred path is beyond a router, so it is on no link.
    let beyond = "remote = \"203.0.113.2\"\nnext_hop = \"192.0.2.2\"";
    let machines = Machines::start_changed(None, |name, text| match name {
        "publisher" => stream_alone(text).replace("remote = \"192.0.2.2\"", beyond),
        _ => stream_alone(text),
    });
    assert_eq!(
        machines.publisher.first_fallback().as_deref(),
        Some("wlan0"),
        "the only route that was not refused"
    );
    assert_others_take_an_uplink(&machines);
}

/// Pushed streams are UDP, on any port.
#[test]
fn guides_machines_replicate_udp_while_a_network_is_cut() {
    for cut in [0, 1] {
        let machines = Machines::start(None);
        let bind = |machine: &Machine, address| {
            let bound = machine.namespace.run(|| UdpSocket::bind((address, 0)));
            let socket = bound.unwrap().unwrap();
            socket.set_read_timeout(Some(support::TIMEOUT)).unwrap();
            socket
        };
        let publisher = bind(&machines.publisher, "10.99.0.1");
        let viewer = bind(&machines.viewer, "10.99.0.2");
        let send = |number: u8| {
            let to_viewer = publisher.send_to(&[number], viewer.local_addr().unwrap());
            let to_publisher = viewer.send_to(&[number], publisher.local_addr().unwrap());
            assert_eq!((to_viewer.unwrap(), to_publisher.unwrap()), (1, 1));
        };
        wait("copies on both paths at both machines", || {
            send(u8::MAX);
            let arrive = |machine: &Machine| {
                let received = &machine.status().receive;
                [1, 2].iter().all(|path| {
                    received
                        .get(&1)
                        .is_some_and(|flow| flow.get(path).is_some_and(|path| path.packets > 0))
                })
            };
            (arrive(&machines.publisher) && arrive(&machines.viewer)).then_some(())
        });
        machines.cut(cut);
        let receive = |socket: &UdpSocket, number| {
            let mut received = [u8::MAX];
            while received == [u8::MAX] {
                socket.recv(&mut received).unwrap();
            }
            assert_eq!(received, [number], "network {cut} is cut");
        };
        for number in 0..100 {
            send(number);
            receive(&viewer, number);
            receive(&publisher, number);
        }
    }
}

/// Returns a file of the guide that selects the pulled stream and no other traffic.
fn stream_alone(text: String) -> String {
    let ports = |address, ports| {
        let all = format!("destination = \"{address}/32\" }}");
        let stream =
            format!("destination = \"{address}/32\", protocol = \"tcp\", {ports} = 14748 }}");
        (all, stream)
    };
    [
        ports("10.99.0.2", "source_ports"),
        ports("10.99.0.1", "destination_ports"),
    ]
    .iter()
    .fold(text, |text, (all, stream)| text.replace(all, stream))
}

/// Asserts that a connection on another port than the stream's works without replication.
fn assert_others_take_an_uplink(machines: &Machines) {
    const OTHER_PORT: &str = "10.99.0.1:14700";
    let listener = machines
        .publisher
        .namespace
        .run(|| TcpListener::bind(OTHER_PORT).unwrap())
        .unwrap();
    let mut client = machines
        .viewer
        .namespace
        .run(|| TcpStream::connect(OTHER_PORT).unwrap())
        .unwrap();
    let mut server = listener.accept().unwrap().0;
    for _ in 0..20 {
        client.write_all(&[1]).unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(&[2]).unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    for machine in [&machines.publisher, &machines.viewer] {
        wait("what took an uplink", || {
            machine
                .status()
                .device
                .filter(|device| device.took_uplink >= 20)
        });
    }
}

#[test]
fn detaching_removes_addresses_and_routes() {
    let mut machines = Machines::start(None);
    let machine = &mut machines.publisher;
    machine.end(Signal::SIGTERM);
    let left = |machine: &Machine| {
        (
            machine.ip("address show dev lo").contains("10.99.0.1"),
            machine.ip("route show proto 72"),
        )
    };
    let (has_address, routes) = left(machine);
    assert!(has_address && routes.lines().count() == 2, "{routes}");
    let output = machine.detach();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(left(machine), (false, String::new()));
}

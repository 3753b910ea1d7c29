//! Clients and packets that a server rejects.

use crate::certificates::Authority;
use crate::process::resident_bytes;
use crate::rig::{HOST4, PORT, Rig};
use crate::traffic::echo;
use hawser_testbed::netns::Namespace;
use hawser_tunnel::status::Status;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::SockRef;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;

/// A client does not send packets of other sources than its own and these.
const FOREIGN: &str = "lan = [\"10.77.9.9/32\", \"fd77::9999/128\"]";

#[test]
fn a_socket_from_before_the_tunnel_is_counted_at_the_client() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let connected = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((HOST4, 9)).unwrap();
        socket
    };
    let socket = rig.client.run(connected).unwrap();
    let client = rig.client("");
    for _ in 0..3 {
        // An ICMP error of an earlier one is reported here.
        let _ = socket.send(b"from outside");
    }
    client.wait_until_counted("foreign_source", 3);
    echo(&rig.client, &rig.host, HOST4);
    let status = server.until("a status", |_| true);
    assert!(!status.sessions[0].dropped.contains_key("spoofed"));
}

#[test]
fn a_source_that_is_not_the_client_s_is_dropped() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let _client = rig.client(FOREIGN);
    rig.client
        .ip("addr add 10.77.9.9/32 dev hawser-tun\naddr add fd77::9999/128 dev hawser-tun nodad")
        .unwrap();
    for (own, to) in [("10.77.9.9", HOST4), ("fd77::9999", crate::rig::HOST6)] {
        let (own, to): (IpAddr, IpAddr) = (own.parse().unwrap(), to.parse().unwrap());
        let socket = rig
            .client
            .run(|| UdpSocket::bind((own, 0)).unwrap())
            .unwrap();
        socket.send_to(b"not mine", (to, 9)).unwrap();
    }
    server.wait_until_counted("spoofed", 2);
    echo(&rig.client, &rig.host, HOST4);
}

#[test]
fn a_clock_before_the_certificates_is_named_in_the_status() {
    let rig = Rig::new();
    let [server, client] = ["one", "car"].map(|name| {
        rig.authority
            .credentials_from(rig.folder.path(), name, 2999)
    });
    let _server = rig.server_with(0, "", &server);
    let config = format!(
        "[tunnel]\nname = \"car\"\nstate = \"{}\"\n{client}[[server]]\nname = \"one\"\n\
         addresses = [\"203.0.0.1:{PORT}\"]\n[[uplink]]\ninterface = \"wan0\"\n",
        rig.folder.path().display()
    );
    let client = rig.start(&rig.client, "car", "client", &config);
    client.until("the status names the clock", |status| {
        let states = status.uplinks.iter().map(|uplink| &uplink.state);
        let mut wrong = states.filter(|state| state.contains("the clock of this machine is wrong"));
        wrong.any(|state| state.contains("is from 2999-01-01"))
    });
}

#[test]
fn clients_do_not_reach_each_other() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let _client = rig.client("");
    rig.client
        .ip("route add 10.77.200.200 dev hawser-tun")
        .unwrap();
    let other: SocketAddr = "10.77.200.200:9".parse().unwrap();
    let socket = rig
        .client
        .run(|| UdpSocket::bind("0.0.0.0:0").unwrap())
        .unwrap();
    socket.send_to(b"hello?", other).unwrap();
    server.wait_until_counted("to_other_client", 1);
}

#[test]
fn foreign_sources_and_destinations_are_dropped() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client(FOREIGN);
    let own = client.session().addresses[0];
    rig.client
        .ip("route add 224.0.0.0/4 dev hawser-tun")
        .unwrap();
    let (foreign, host, neighbour) = ("10.77.9.9", HOST4, "10.77.200.200");
    for (protocol, fragment) in [
        (UDP, 0),
        (UDP, MORE_FRAGMENTS),
        (UDP, 100),
        (ICMP, 0),
        (ICMP, 100),
    ] {
        for (from, to) in [(foreign, host), (foreign, "224.0.0.1"), ("224.0.0.1", host)] {
            send_raw(&rig, protocol, fragment, from, to);
        }
        send_raw(&rig, protocol, fragment, &own.to_string(), neighbour);
    }
    server.wait_until_counted("spoofed", 15);
    server.wait_until_counted("to_other_client", 5);
    echo(&rig.client, &rig.host, HOST4);
}

const UDP: u8 = 17;
const ICMP: u8 = 1;

/// Flag in the fragment offset field: more fragments follow.
const MORE_FRAGMENTS: u16 = 0x2000;

/// Sends a raw IPv4 packet, apart from the fields that the kernel fills in.
fn send_raw(rig: &Rig, protocol: u8, fragment: u16, from: &str, to: &str) {
    let octets = |address: &str| address.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let mut packet = vec![0x45, 0, 0, 48, 0x12, 0x34];
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(octets(from));
    packet.extend(octets(to));
    // As UDP: ports 9. As ICMP: an arbitrary message.
    packet.extend([0, 9, 0, 9, 0, 28, 0, 0]);
    packet.resize(48, 0);
    let raw = socket2::Protocol::from(nix::libc::IPPROTO_RAW);
    let open =
        || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(raw)).unwrap();
    let socket = rig.client.run(open).unwrap();
    socket.bind_device(Some(b"hawser-tun")).unwrap();
    let to: SocketAddr = (to.parse::<IpAddr>().unwrap(), 0).into();
    socket.send_to(&packet, &to.into()).unwrap();
}

#[test]
fn clients_of_two_local_servers_are_isolated() {
    let rig = Rig::new();
    let folder = rig.folder.path();
    let _one = rig.server(0, "allowed_destinations = [\"10.78.0.0/16\"]", "");
    let tls = rig.authority.credentials(folder, "three");
    let state = folder.display();
    let config = format!(
        "[tunnel]\nname = \"three\"\naddresses = [\"10.78.0.0/16\"]\nlisten = [\"[::]:14753\"]\n\
         interface = \"other\"\nstate = \"{state}\"\n{tls}"
    );
    let three = rig.start(&rig.servers[0], "three", "server", &config);
    three.until("the other server serves", |_| true);
    let tls = rig.authority.credentials(folder, "bus");
    let config = format!(
        "[tunnel]\nname = \"bus\"\nstate = \"{state}\"\n{tls}[[server]]\nname = \"three\"\n\
         addresses = [\"198.51.0.1:14753\"]\n[[uplink]]\ninterface = \"to0\"\n"
    );
    let bus = rig.start(&rig.host, "bus", "client", &config);
    let address = bus.session().addresses[0];
    let _car = rig.client("");
    rig.client
        .ip("route add 10.78.0.0/16 dev hawser-tun")
        .unwrap();
    let socket = rig
        .client
        .run(|| UdpSocket::bind("0.0.0.0:0").unwrap())
        .unwrap();
    let start = std::time::Instant::now();
    let has_dropped = |rule: &str| rule.contains("counter packets") && !rule.contains("packets 0 ");
    while !crate::rig::nft(&rig.servers[0], "list ruleset")
        .lines()
        .any(has_dropped)
    {
        socket.send_to(b"hello?", (address, 9)).unwrap();
        assert!(start.elapsed() < crate::rig::TIMEOUT, "nothing was dropped");
        thread::sleep(std::time::Duration::from_millis(20));
    }
    echo(&rig.client, &rig.host, HOST4);
}

#[test]
fn certificates_of_another_authority_are_refused() {
    let rig = Rig::new();
    let foreign = Authority::new();
    let server = rig.server(0, "", "");
    let tls = foreign.credentials(rig.folder.path(), "stranger");
    // The client trusts the servers, but they do not trust it.
    let tls = tls.replace("stranger.authority.pem", "one.authority.pem");
    let config = client_config(&rig, "stranger", &tls, "one");
    let client = rig.start(&rig.client, "stranger", "client", &config);
    server.wait_until_counted("connection_handshake", 1);
    client.until("no session", |status| status.sessions.is_empty());
    assert!(
        server
            .until("nobody is let in", |_| true)
            .sessions
            .is_empty()
    );
}

#[test]
fn a_server_of_another_name_is_not_talked_to() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let tls = rig.authority.credentials(rig.folder.path(), "car");
    let client = rig.start(
        &rig.client,
        "car",
        "client",
        &client_config(&rig, "car", &tls, "somebody-else"),
    );
    server.wait_until_counted("connection_handshake", 1);
    client.until("no session", |status| status.sessions.is_empty());
}

#[test]
fn two_clients_of_one_name_do_not_take_turns() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    // On another machine.
    let tls = rig.authority.credentials(rig.folder.path(), "car");
    let config = client_config(&rig, "twin", &tls, "one").replace("wan*", "net");
    let first = rig.start(&rig.servers[1], "twin", "client", &config);
    first.until("the first has a session", |status| {
        status.sessions.len() == 1
    });
    let second = rig.client("");
    first.until("the first has none", |status| status.sessions.is_empty());
    let since = second.session().since_unix_ms;
    second.until("both uplinks", |status| status.sessions[0].paths.len() == 2);
    let status = server.until("one was superseded", |status| {
        status.dropped.contains_key("connection_superseded") && status.sessions.len() == 1
    });
    assert_eq!(status.dropped["connection_superseded"], 1);
    assert_eq!(second.session().since_unix_ms, since);
}

#[test]
fn an_uplink_says_why_it_is_not_connected() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let servers = format!("[[server]]\nname = \"other\"\naddresses = [\"203.0.0.1:{PORT}\"]\n");
    let uplinks = "[[uplink]]\ninterface = \"wan*\"\n[[uplink]]\ninterface = \"modem\"\n";
    let client = rig.client_with("car", "", &format!("{servers}{uplinks}"));
    let state = |status: &Status, name: &str| {
        status
            .uplinks
            .iter()
            .find(|uplink| uplink.name == name)
            .map_or(String::new(), |uplink| uplink.state.clone())
    };
    client.until("the certificate is another server's", |status| {
        state(status, "wan0").contains("certificate not valid for name \"other\"")
    });
    client.until("an interface is missing", |status| {
        state(status, "modem").starts_with("there is no such interface")
    });
}

#[test]
fn a_client_that_is_not_listed_is_not_admitted() {
    let rig = Rig::new();
    let server = rig.server(
        0,
        "admit_unlisted = false",
        "[[client]]\nname = \"bus\"\naddresses = [\"10.77.0.50\"]\n",
    );
    let _car = rig.start_client("car", "");
    server.wait_until_counted("connection_not_admitted", 1);
    drop(_car);
    let bus = rig.start_client("bus", "");
    assert_eq!(bus.session().addresses[0], IpAddr::from([10, 77, 0, 50]));
}

#[test]
fn garbage_at_the_port_of_a_server_does_no_harm() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    let since = client.session().since_unix_ms;
    let memory = resident_bytes(server.process.id());
    let mut garbage = Garbage::new(&rig);

    for _ in 0..50 {
        garbage.send(&[]);
        garbage.send_random(&[], 4);
        garbage.send_random(&long_header(INITIAL, 7), 1200);
        garbage.send_random(&long_header(INITIAL, 1), 600);
        garbage.send_random(&long_header(INITIAL, 1)[..9], 0);
        garbage.send_random(&[0x43], 1200);
        garbage.send_random(&long_header(HANDSHAKE, 1), 1200);
    }
    garbage.flood(&rig);
    wait_until_read(&rig);

    let flooded = resident_bytes(server.process.id()).saturating_sub(memory);
    assert!(flooded < 32 << 20, "{flooded} bytes more after the flood");
    echo(&rig.client, &rig.host, HOST4);
    assert_eq!(
        client.session().since_unix_ms,
        since,
        "the session is the same"
    );
    server.until("the client is the only one", |status| {
        status.sessions.len() == 1
    });
}

#[test]
fn datagrams_that_a_server_does_not_read_are_counted() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    let mut garbage = Garbage::new(&rig);
    let pid = Pid::from_raw(server.process.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    // More than the 8 MB of the kernel's receive buffer.
    (0..10_000).for_each(|_| garbage.send_random(&[0x43], 1400));
    kill(pid, Signal::SIGCONT).unwrap();
    server.wait_until_counted("datagram_buffer_full", 1000);
    echo(&rig.client, &rig.host, HOST4);
    client.until("the session goes on", |status| status.sessions.len() == 1);
}

/// Packet types with a long header.
const INITIAL: u8 = 0xc0;
const HANDSHAKE: u8 = 0xe0;

/// Returns a long header with a destination ID of eight bytes, no source ID, no token, and a length
/// of 500.
fn long_header(first: u8, version: u8) -> Vec<u8> {
    let mut header = vec![first, 0, 0, 0, version, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0];
    header.extend(if first == INITIAL {
        &[0, 0x41, 0xf4][..]
    } else {
        &[0x41, 0xf4]
    });
    header
}

/// The ECN field of a packet that the network has marked.
const CONGESTION_EXPERIENCED: u32 = 0b11;

/// A sender of datagrams that do not belong to a tunnel.
struct Garbage {
    socket: UdpSocket,
    state: u64,
}

impl Garbage {
    fn new(rig: &Rig) -> Garbage {
        let socket = rig
            .client
            .run(|| UdpSocket::bind("10.1.0.1:0").unwrap())
            .unwrap();
        // Also marked datagrams that are empty or not QUIC's must do no harm.
        SockRef::from(&socket)
            .set_tos_v4(CONGESTION_EXPERIENCED)
            .unwrap();
        Garbage { socket, state: 1 }
    }

    fn random(&mut self) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    fn send(&mut self, datagram: &[u8]) {
        self.socket.send_to(datagram, ("203.0.0.1", PORT)).unwrap();
    }

    /// Sends a datagram of `length` bytes that starts with `header`, followed by random bytes.
    fn send_random(&mut self, header: &[u8], length: usize) {
        let mut datagram = header.to_vec();
        while datagram.len() < length {
            datagram.push(self.random() as u8);
        }
        // No long header unless `header` has one.
        if header.is_empty() {
            datagram[0] &= 0x7f;
        }
        self.send(&datagram);
    }

    /// Sends 50,000 datagrams of all kinds, as fast as the server reads them.
    fn flood(&mut self, rig: &Rig) {
        for number in 0..50_000u32 {
            match number % 4 {
                0 => {
                    // Each with an ID of its own, like separate connections.
                    let mut header = long_header(INITIAL, 1);
                    header[6..10].copy_from_slice(&number.to_be_bytes());
                    self.send_random(&header, 1200);
                }
                1 => self.send_random(&long_header(HANDSHAKE, 1), 516),
                2 => self.send_random(&[0x43], 1400),
                _ => {
                    let length = self.random() as usize % 1400;
                    self.send_random(&[0xff], length);
                }
            }
            if number % 200 == 0 {
                wait_until_read(rig);
            }
        }
    }
}

/// Waits until the server has read all datagrams that have arrived.
fn wait_until_read(rig: &Rig) {
    while waiting_bytes(&rig.servers[0]) > 0 {
        thread::yield_now();
    }
}

/// Returns the bytes in the kernel's receive buffer of the server's socket.
fn waiting_bytes(server: &Namespace) -> u64 {
    let table = server
        .run(|| fs::read_to_string("/proc/thread-self/net/udp6").unwrap())
        .unwrap();
    let port = format!(":{PORT:04X}");
    let sockets = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut queues = sockets
        .filter(|columns| columns[1].ends_with(&port))
        .map(|columns| columns[4]);
    let (_, waiting) = queues.next().unwrap().split_once(':').unwrap();
    u64::from_str_radix(waiting, 16).unwrap()
}

fn client_config(rig: &Rig, name: &str, tls: &str, server: &str) -> String {
    format!(
        "[tunnel]\nname = \"{name}\"\nstate = \"{}\"\n{tls}\n[[server]]\nname = \"{server}\"\n\
         addresses = [\"203.0.0.1:{PORT}\"]\n[[uplink]]\ninterface = \"wan*\"\n",
        rig.folder.path().display()
    )
}

//! Packets that are denied unless the configuration allows them: from clients to networks behind a
//! server, and from a server to networks behind a client.

use crate::rig::{End, HOST4, HOST6, PORT, Rig, TIMEOUT, nft};
use crate::traffic::echo;
use hawser_quic::tls;
use hawser_testbed::netns::Namespace;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;
use noq::{
    Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime,
};
use serde_json::{Value, json};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn clients_reach_no_private_networks_or_cloud_metadata() {
    let rig = Rig::new();
    rig.servers[0]
        .ip("addr add 2001:db8::1/128 dev lo nodad")
        .unwrap();
    let server = rig.server(0, "allowed_destinations = []", "");
    let _client = rig.client("");
    let private = [
        "10.5.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        HOST6,
        "fd00:ec2::254",
    ];
    let own = ["203.0.0.1", "198.51.0.1", "2001:db8::1"];
    // A socket bound to a device needs no route for IPv4.
    rig.client
        .ip("route add fd00:ec2::254 dev hawser-tun\nroute add 2001:db8::1 dev hawser-tun")
        .unwrap();
    nft(
        &rig.servers[0],
        "table inet seen {\ncounter inside {}\nchain arrives {\ntype filter hook prerouting priority raw;\n\
         iifname \"hawser-tun\" ip daddr != 198.51.100.9 counter name inside\n\
         iifname \"hawser-tun\" meta nfproto ipv6 counter name inside\n}\n}",
    );
    for to in private.iter().chain(&own) {
        send(&rig.client, to);
    }
    server.wait_until_counted("to_private", private.len() as u64);
    server.wait_until_counted("to_server", own.len() as u64);
    let seen = nft(&rig.servers[0], "list counter inet seen inside");
    assert!(seen.contains("packets 0 "), "{seen}");
    echo(&rig.client, &rig.host, HOST4);
}

/// Sends a datagram into the tunnel.
fn send(from: &Namespace, to: &str) {
    let to: IpAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let open = || {
        let socket = UdpSocket::bind(any).unwrap();
        setsockopt(&socket, BindToDevice, &"hawser-tun".into()).unwrap();
        socket
    };
    from.run(open)
        .unwrap()
        .send_to(b"who is there?", (to, 9))
        .unwrap();
}

#[test]
fn allowed_destinations_are_reached() {
    let rig = Rig::new();
    let server = rig.server(0, &format!("allowed_destinations = [\"{HOST6}/128\"]"), "");
    let _client = rig.client("");
    echo(&rig.client, &rig.host, HOST6);
    send(&rig.client, "10.5.0.1");
    server.wait_until_counted("to_private", 1);
}

#[test]
fn one_client_does_not_fill_the_table_of_connections() {
    const MAX: usize = 10;
    let rig = Rig::new();
    let _server = rig.server(0, &format!("max_connections = {MAX}"), "");
    let _client = rig.client("");
    for host in [HOST4, HOST6] {
        let any = if host == HOST4 { "0.0.0.0:0" } else { "[::]:0" };
        let listener = rig
            .host
            .run(|| UdpSocket::bind((host, 0)).unwrap())
            .unwrap();
        listener
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let sockets: Vec<_> = (0..3 * MAX)
            .map(|_| rig.client.run(|| UdpSocket::bind(any).unwrap()).unwrap())
            .collect();
        let mut received = std::collections::BTreeSet::new();
        let start = Instant::now();
        // Repeatedly, so that none of them is only late.
        while dropped(&rig.servers[0], host == HOST4) < 5 * MAX as u64 {
            for (number, socket) in sockets.iter().enumerate() {
                socket
                    .send_to(&[number as u8], listener.local_addr().unwrap())
                    .unwrap();
            }
            let mut number = [0];
            while listener.recv(&mut number).is_ok() {
                received.insert(number[0]);
            }
            assert!(start.elapsed() < TIMEOUT, "no packet was dropped");
        }
        assert_eq!(received.len(), MAX, "{host}: {received:?}");
    }
}

/// Returns the packets dropped by the limit of connections.
fn dropped(server: &Namespace, ipv4: bool) -> u64 {
    let rules = nft(server, "list chain inet hawser_hawser_tun connections");
    let set = if ipv4 { "@ip_clients" } else { "@ip6_clients" };
    let rule = rules.lines().find(|line| line.contains(set)).unwrap();
    let (_, counted) = rule.split_once("counter packets ").unwrap();
    counted.split_whitespace().next().unwrap().parse().unwrap()
}

const OWN: &str = "10.77.0.2";
const BEHIND: &str = "10.9.0.2";

#[test]
fn a_server_does_not_reach_networks_behind_a_client() {
    let rig = Rig::new();
    rig.client
        .ip("link add lan type veth peer name behind\naddr add 10.9.0.1/24 dev lan\nlink set lan up\n\
             link set behind up")
        .unwrap();
    rig.client.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let closed = [
        (HOST4, BEHIND),
        (HOST4, "10.1.0.2"),
        (HOST4, "10.1.0.1"),
        (HOST4, "10.77.0.3"),
        (HOST4, "224.0.0.1"),
        ("10.9.0.2", OWN),
        ("10.1.0.2", OWN),
        (OWN, OWN),
        ("127.0.0.1", OWN),
    ];
    for (lan, opened) in [("", 0), ("lan = [\"10.9.0.0/24\"]", 1)] {
        let _server = RogueServer::start(&rig, &closed);
        let client = client(&rig, lan);
        let socket = rig.client.run(|| bind_when_there(OWN)).unwrap();
        let (_, from) = socket.recv_from(&mut [0; 100]).unwrap();
        assert_eq!(
            from.ip(),
            HOST4.parse::<IpAddr>().unwrap(),
            "a valid packet is forwarded"
        );
        client.wait_until_counted("not_for_client", 2 * (5 - opened));
        client.wait_until_counted("spoofed", 8);
        assert_eq!(is_seen(&rig.client, BEHIND), opened == 1, "{lan}");
        assert!(!is_seen(&rig.client, "10.1.0.2"));
    }
}

#[test]
fn a_server_routes_only_inner_addresses_into_a_client() {
    let rig = Rig::new();
    let packets = vec![udp(HOST4, OWN)];
    let wide = json!([[OWN, 1], ["fd77::2", 2]]);
    let server = RogueServer::assigning(&rig, wide, packets.clone());
    let started = client(&rig, "bypass = [\"10.0.0.0/16\"]");
    let status = started.until("a session", |status| !status.sessions.is_empty());
    assert_eq!(
        status.addresses,
        [OWN, "fd77::2"].map(|address| address.parse::<IpAddr>().unwrap())
    );
    assert_eq!(routes_by_tunnel(&rig.client, "-4"), ["10.77.0.1", HOST4]);
    assert_eq!(
        routes_by_tunnel(&rig.client, "-6"),
        [HOST6, "fd77::1", "fd77::2"]
    );
    drop((started, server));

    for (addresses, reason) in [
        (
            json!([[OWN, 16], ["10.77.0.3", 16]]),
            "several inner addresses",
        ),
        (json!([["127.0.0.2", 8]]), "which no node can have"),
        (json!([["10.1.1.1", 24]]), "in use on another interface"),
        (json!([["203.0.0.1", 24]]), "address of a server"),
    ] {
        let _server = RogueServer::assigning(&rig, addresses, packets.clone());
        let client = client(&rig, "");
        let status = client.until(reason, |status| {
            status
                .uplinks
                .iter()
                .any(|uplink| uplink.state.contains(reason))
        });
        assert!(status.sessions.is_empty() && status.addresses.is_empty());
        assert!(routes_by_tunnel(&rig.client, "-4").is_empty());
    }
}

/// Returns the destinations that the client routes into the tunnel, sorted. With IPv6, these include
/// its own address.
fn routes_by_tunnel(client: &Namespace, family: &str) -> Vec<String> {
    let mut command = client.command("ip").unwrap();
    let show = format!("{family} route show table main dev hawser-tun");
    command.args(show.split(' '));
    let routes = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let first = routes
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let mut destinations: Vec<_> = first.map(str::to_owned).collect();
    destinations.sort_unstable();
    destinations
}

fn client(rig: &Rig, more: &str) -> End {
    nft(
        &rig.client,
        &format!(
            "table inet seen\ndelete table inet seen\ntable inet seen {{\nchain arrives {{\n\
             type filter hook prerouting priority raw;\niifname \"hawser-tun\" ip daddr {BEHIND} counter\n\
             iifname \"hawser-tun\" ip daddr 10.1.0.2 counter\n}}\n}}"
        ),
    );
    let server = format!("[[server]]\nname = \"one\"\naddresses = [\"203.0.0.1:{PORT}\"]\n");
    rig.client_with(
        "car",
        more,
        &format!("{server}[[uplink]]\ninterface = \"wan0\"\n"),
    )
}

fn is_seen(client: &Namespace, to: &str) -> bool {
    let rules = nft(client, "list table inet seen");
    rules
        .lines()
        .any(|rule| rule.contains(&format!("{to} counter")) && !rule.contains("packets 0 "))
}

fn bind_when_there(address: &str) -> UdpSocket {
    let start = Instant::now();
    loop {
        match UdpSocket::bind((address, 9)) {
            Ok(socket) => {
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                return socket;
            }
            Err(error) => assert!(start.elapsed() < TIMEOUT, "{address}: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A server that admits any client and sends arbitrary packets, until it is dropped.
struct RogueServer {
    stop: tokio::sync::watch::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl RogueServer {
    /// Starts a server that sends each of these packets repeatedly, alternating with a valid packet
    /// to the client.
    fn start(rig: &Rig, packets: &[(&str, &str)]) -> RogueServer {
        let packets = packets.iter();
        let packets = packets.flat_map(|(from, to)| [udp(from, to), udp(HOST4, OWN)]);
        RogueServer::assigning(rig, json!([[OWN, 16]]), packets.collect())
    }

    /// Starts a server that assigns these addresses, with their prefix lengths, and sends the
    /// packets.
    fn assigning(rig: &Rig, addresses: Value, packets: Vec<Vec<u8>>) -> RogueServer {
        rig.authority.credentials(rig.folder.path(), "one");
        let read = |end: &str| fs::read_to_string(rig.path(&format!("one{end}"))).unwrap();
        let authorities = tls::authorities(&read(".authority.pem")).unwrap();
        let identity = tls::Identity::from_pem(&read(".pem"), &read(".key")).unwrap();
        let config = tls::server(authorities, &identity, b"hawser-tunnel/1").unwrap();
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let namespace = rig.servers[0].clone();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
                let config = ServerConfig::with_crypto(config);
                let runtime = Arc::new(TokioRuntime);
                let endpoint =
                    Endpoint::new(EndpointConfig::default(), Some(config), socket, runtime)
                        .unwrap();
                let serve = async {
                    while let Some(incoming) = endpoint.accept().await {
                        let (addresses, packets) = (addresses.clone(), packets.clone());
                        tokio::spawn(async move {
                            // A client may disconnect.
                            if let Ok(connection) = incoming.await {
                                let _ = send_packets(connection, &addresses, &packets).await;
                            }
                        });
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped.changed() => {}
                }
            });
        };
        let thread = thread::spawn(move || namespace.run(serve).unwrap());
        RogueServer {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for RogueServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic shows in what the test observes.
            let _ = thread.join();
        }
    }
}

async fn send_packets(
    connection: Connection,
    addresses: &Value,
    packets: &[Vec<u8>],
) -> Option<()> {
    let (mut send, mut receive) = connection.accept_bi().await.ok()?;
    let mut hello = receive_message(&mut receive).await?;
    if hello == "probe" {
        send_message(&mut send, &json!("arrived")).await?;
        hello = receive_message(&mut receive).await?;
    }
    let opened = json!({ "opened": {
        "session": "00112233445566778899aabbccddeeff", "addresses": addresses,
        "server_addresses": ["10.77.0.1", "fd77::1"], "mtu": 1400, "coding": {}
    } });
    hello.get("open")?;
    send_message(&mut send, &opened).await?;
    for number in 0u32.. {
        let [_, high, middle, low] = number.to_be_bytes();
        let packet = &packets[number as usize % packets.len()];
        let datagram = [&[1, middle, low, high, middle, low][..], packet].concat();
        connection.send_datagram_wait(datagram.into()).await.ok()?;
        // About as fast as a client reads them.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Some(())
}

async fn receive_message(from: &mut RecvStream) -> Option<Value> {
    let mut length = [0; 2];
    from.read_exact(&mut length).await.ok()?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    from.read_exact(&mut message).await.ok()?;
    serde_json::from_slice(&message).ok()
}

async fn send_message(to: &mut SendStream, message: &Value) -> Option<()> {
    let message = message.to_string();
    let length = (message.len() as u16).to_be_bytes();
    to.write_all(&[&length[..], message.as_bytes()].concat())
        .await
        .ok()
}

/// Returns a UDP datagram to port 9.
fn udp(from: &str, to: &str) -> Vec<u8> {
    let octets = |address: &str| address.parse::<Ipv4Addr>().unwrap().octets();
    let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend([octets(from), octets(to)].concat());
    let sum: u32 = packet
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    // Without a checksum, which IPv4 allows.
    packet.extend([0, 9, 0, 9, 0, 9, 0, 0, b'?']);
    packet
}

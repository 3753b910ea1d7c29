//! Traffic through the tunnel: TCP and UDP, both families, both directions.

use crate::rig::{HOST4, HOST6, PORT, Rig, TIMEOUT, nft};
use hawser_io::sockopt::{MtuDiscovery, set_mtu_discovery};
use hawser_testbed::netns::Namespace;
use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Mark;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A TCP connection inside the tunnel that carries a known byte sequence until it is stopped.
pub(crate) struct Connection {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    ends: [JoinHandle<u64>; 2],
}

impl Connection {
    pub(crate) fn open(from: &Namespace, to: &Namespace, address: &str) -> Connection {
        let address: IpAddr = address.parse().unwrap();
        let listener = to.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let receiver = thread::spawn({
            let received = Arc::clone(&received);
            move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = vec![0; 65_536];
                let mut total = 0;
                loop {
                    let length = stream.read(&mut buffer).unwrap();
                    if length == 0 {
                        return total;
                    }
                    let expected = (total..).map(|at: u64| (at % 251) as u8);
                    assert!(
                        buffer[..length].iter().copied().eq(expected.take(length)),
                        "the received bytes are wrong"
                    );
                    total += length as u64;
                    received.store(total, Relaxed);
                }
            }
        });
        let mut stream = from
            .run(|| TcpStream::connect((address, port)).unwrap())
            .unwrap();
        let sender = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut total = 0;
                while !stop.load(Relaxed) {
                    let bytes: Vec<u8> = (total..total + 1000)
                        .map(|at: u64| (at % 251) as u8)
                        .collect();
                    stream.write_all(&bytes).unwrap();
                    total += 1000;
                    // About 4 Mb/s: the tests look for faults, not speed.
                    thread::sleep(Duration::from_millis(2));
                }
                total
            }
        });
        Connection {
            stop,
            received,
            ends: [sender, receiver],
        }
    }

    /// Waits until data that was sent after this call has arrived.
    pub(crate) fn wait_for_progress(&self) {
        let start = std::time::Instant::now();
        // Data in flight may still arrive.
        let goal = self.received.load(Relaxed) + 100_000;
        while self.received.load(Relaxed) < goal {
            assert!(
                start.elapsed() < crate::rig::GOES_ON,
                "the connection inside the tunnel has stalled"
            );
            assert!(
                !self.ends.iter().any(JoinHandle::is_finished),
                "the connection inside the tunnel broke"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn end(self) {
        self.stop.store(true, Relaxed);
        let [sent, received] = self.ends.map(|end| end.join().unwrap());
        assert_eq!(sent, received);
    }
}

/// The interval at which a flood sends.
const EVERY: Duration = Duration::from_millis(2);

/// A stream of datagrams without an answer, until it is dropped.
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// 4 Mb/s.
    pub(crate) fn start(from: &Namespace, to: IpAddr) -> Flood {
        Flood::of(from, to, vec![1000], EVERY)
    }

    /// Datagrams of this size, which are larger than a packet inside may be after a while.
    pub(crate) fn of_size(from: &Namespace, to: IpAddr, bytes: usize) -> Flood {
        Flood::of(from, to, vec![bytes], EVERY)
    }

    /// Pairs of datagrams of these sizes, every 20 ms.
    pub(crate) fn of_pairs(from: &Namespace, to: IpAddr, sizes: [usize; 2]) -> Flood {
        Flood::of(from, to, sizes.to_vec(), 10 * EVERY)
    }

    /// Sends datagrams of these sizes each time.
    fn of(from: &Namespace, to: IpAddr, sizes: Vec<usize>, every: Duration) -> Flood {
        let socket = from.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Relaxed) {
                    for bytes in &sizes {
                        // Fails with the ICMP error that the port is closed.
                        let _ = socket.send_to(&vec![0; *bytes], (to, 9));
                    }
                    thread::sleep(every);
                }
            }
        });
        Flood {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic.
            let _ = thread.join();
        }
    }
}

/// Sends datagrams of several sizes, each until it comes back.
pub(crate) fn echo(from: &Namespace, to: &Namespace, address: &str) {
    echo_marked(from, to, address, 0);
}

/// As [`echo`], with a firewall mark.
pub(crate) fn echo_marked(from: &Namespace, to: &Namespace, address: &str, mark: u32) {
    const AGAIN_AFTER: Duration = Duration::from_secs(1);
    let contents = |length: usize| vec![(length / 70) as u8; length];
    let address: IpAddr = address.parse().unwrap();
    let listener = to.run(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    let target: SocketAddr = listener.local_addr().unwrap();
    let any: IpAddr = if address.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let socket = from.run(|| UdpSocket::bind((any, 0)).unwrap()).unwrap();
    setsockopt(&socket, Mark, &mark).unwrap();
    socket.set_read_timeout(Some(AGAIN_AFTER)).unwrap();
    let poll = Duration::from_millis(20);
    listener.set_read_timeout(Some(poll)).unwrap();
    let running = Arc::new(());
    let is_running = Arc::downgrade(&running);
    thread::spawn(move || {
        let mut buffer = [0; 2000];
        while is_running.strong_count() > 0 {
            if let Ok((length, from)) = listener.recv_from(&mut buffer) {
                let _ = listener.send_to(&buffer[..length], from);
            }
        }
    });
    let (start, mut buffer) = (Instant::now(), [0; 2000]);
    for length in (0..20).map(|size| size * 70) {
        socket.send_to(&contents(length), target).unwrap();
        loop {
            match socket.recv(&mut buffer) {
                Ok(came) => {
                    assert_eq!(buffer[..came], contents(came));
                    if came == length {
                        break;
                    }
                }
                Err(_) => drop(socket.send_to(&contents(length), target).unwrap()),
            }
            assert!(start.elapsed() < TIMEOUT, "{length} bytes do not come back");
        }
    }
    drop(running);
}

#[test]
fn tcp_and_udp_of_both_families() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let _client = rig.client("");
    for address in [HOST4, HOST6] {
        echo(&rig.client, &rig.host, address);
        let connection = Connection::open(&rig.client, &rig.host, address);
        connection.wait_for_progress();
        connection.end();
    }
}

#[test]
fn a_host_without_ipv6_has_ipv4_inside() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    for which in ["all", "default"] {
        rig.client
            .sysctl(&format!("net.ipv6.conf.{which}.disable_ipv6"), "1")
            .unwrap();
    }
    let tls = rig.authority.credentials(rig.folder.path(), "car");
    let server = "[[server]]\nname = \"one\"\naddresses = [\"203.0.0.1:14752\"]\n";
    let config = format!(
        "[tunnel]\nname = \"car\"\nroutes = [\"{HOST4}/32\"]\nstate = \"{}\"\n{tls}{server}[[uplink]]\ninterface = \"wan*\"\n",
        rig.folder.path().display()
    );
    let client = rig.start(&rig.client, "car", "client", &config);
    client.until("there is a session", |status| !status.sessions.is_empty());
    echo(&rig.client, &rig.host, HOST4);
}

#[test]
fn what_was_carried_is_measured() {
    let rig = Rig::new();
    let _server = rig.server(0, "metrics = \"127.0.0.1:9478\"", "");
    let _client = rig.client("");
    echo(&rig.client, &rig.host, HOST4);
    // The metrics are those of the last status, which is written every second.
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let page = rig.servers[0].run(metrics_page).unwrap();
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        let mut lines = page.lines();
        let carried = lines.find_map(|line| {
            line.strip_prefix("hawser_tunnel_received_bytes_total{peer=\"car\"} ")
        });
        if carried.is_some_and(|carried| carried.parse::<u64>().unwrap() > 10_000) {
            return;
        }
        assert!(Instant::now() < deadline, "{page}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn metrics_page() -> String {
    let mut stream = TcpStream::connect("127.0.0.1:9478").unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn flushed_nat_rules_are_restored_and_end_with_the_server() {
    let rig = Rig::new();
    // Its client has no other server.
    let server = rig.server(0, "drain_s = 0", "");
    let _client = rig.client("");
    let listener = rig
        .host
        .run(|| TcpListener::bind((HOST4, 0)).unwrap())
        .unwrap();
    let target = listener.local_addr().unwrap();
    let is_rewritten = || {
        let _stream = rig
            .client
            .run(|| TcpStream::connect(target).unwrap())
            .unwrap();
        assert_eq!(
            listener.accept().unwrap().1.ip(),
            IpAddr::from([198, 51, 0, 1])
        );
    };
    is_rewritten();
    crate::rig::nft(&rig.servers[0], "flush ruleset");
    server.until("the rules are made again", |status| {
        status.tables_restored == 1
    });
    is_rewritten();

    assert!(server.process.stop(crate::rig::TIMEOUT).unwrap().success());

    assert_eq!(crate::rig::nft(&rig.servers[0], "list tables"), "");
}

/// Sends datagrams to the host over one socket until it is dropped.
struct Camera {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Camera {
    fn start(from: &Namespace, to: SocketAddr) -> Camera {
        let any: IpAddr = if to.is_ipv4() {
            [0; 4].into()
        } else {
            [0; 16].into()
        };
        let socket = from.run(|| UdpSocket::bind((any, 0)).unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                // Without a route, nothing is sent.
                let _ = socket.send_to(b"picture", to);
                thread::sleep(Duration::from_millis(5));
            }
        });
        Camera {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

#[test]
fn flows_that_were_outside_the_tunnel_before_are_translated() {
    let rig = Rig::new();
    let behind = rig.network_behind_the_client();
    // Connection tracking works in a namespace with a rule that needs it.
    nft(
        &rig.client,
        "table inet track {\nchain forward {\ntype filter hook forward priority 0;\nct state established accept\n}\n}",
    );
    let _server = rig.server(0, "nat = false", "");
    let hosts: Vec<UdpSocket> = [HOST4, HOST6]
        .map(|address| {
            let address: IpAddr = address.parse().unwrap();
            let socket = rig.host.run(|| UdpSocket::bind((address, 0)).unwrap());
            socket.unwrap()
        })
        .into();
    let _cameras: Vec<_> = hosts
        .iter()
        .map(|host| Camera::start(&behind, host.local_addr().unwrap()))
        .collect();
    for _ in 0..2 {
        let client = rig.client("masquerade = true");
        for host in &hosts {
            host.set_read_timeout(Some(TIMEOUT)).unwrap();
            let inner = client.session().addresses;
            // Packets of the time without a client may have arrived first.
            let is_outside = || {
                let (_, from) = host.recv_from(&mut [0; 16]).expect("a picture");
                !inner.contains(&from.ip())
            };
            let deadline = Instant::now() + TIMEOUT;
            while is_outside() {
                assert!(Instant::now() < deadline, "it still leaves outside");
            }
        }
        // The next client finds flows of the time without one.
        drop(client);
    }
    behind.delete().unwrap();
}

#[test]
fn flows_that_a_server_did_not_translate_before_are_translated() {
    let rig = Rig::new();
    nft(
        &rig.servers[0],
        "table inet track {\nchain forward {\ntype filter hook forward priority 0;\nct state established accept\n}\n}",
    );
    let hosts = [HOST4, HOST6].map(|address| {
        let address: IpAddr = address.parse().unwrap();
        let socket = rig.host.run(|| UdpSocket::bind((address, 0)).unwrap());
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    });
    let until_source_is = |wanted: &dyn Fn(IpAddr) -> bool| {
        for host in &hosts {
            let deadline = Instant::now() + TIMEOUT;
            while !wanted(host.recv_from(&mut [0; 16]).expect("a picture").1.ip()) {
                assert!(Instant::now() < deadline, "it has another source");
            }
        }
    };
    let server = rig.server(0, "nat = false", "");
    let client = rig.client("");
    let inner = client.session().addresses;
    let _cameras = hosts
        .each_ref()
        .map(|host| Camera::start(&rig.client, host.local_addr().unwrap()));
    until_source_is(&|source| inner.contains(&source));
    drop(server);
    let server = rig.server(0, "", "");
    until_source_is(&|source| !inner.contains(&source));

    // As when another program takes the rules away for a time.
    nft(&rig.servers[0], "delete table inet hawser_hawser_tun");
    server.until("the rules are made again", |status| {
        status.tables_restored == 1
    });
    until_source_is(&|source| !inner.contains(&source));
}

#[test]
fn what_is_too_big_is_answered_by_the_kernel() {
    let rig = Rig::new();
    let server = rig.server(0, "nat = false", "");
    let _client = rig.client("");
    let session = server.session();
    assert!(
        (1400..1440).contains(&session.mtu_bytes),
        "1500 bytes leave {}",
        session.mtu_bytes
    );
    let hosts = session
        .addresses
        .iter()
        .map(|address| if address.is_ipv6() { HOST6 } else { HOST4 });
    let hosts: Vec<IpAddr> = hosts.map(|host| host.parse().unwrap()).collect();
    let down = hosts
        .iter()
        .zip(&session.addresses)
        .map(|(own, to)| (&rig.host, *own, *to));
    let up = session
        .addresses
        .iter()
        .zip(&hosts)
        .map(|(own, to)| (&rig.client, *own, *to));
    for (from, own, address) in down.chain(up) {
        let ipv6 = address.is_ipv6();
        let socket = from.run(|| UdpSocket::bind((own, 0)).unwrap()).unwrap();
        set_mtu_discovery(&socket, ipv6, MtuDiscovery::Do).unwrap();
        socket.connect((address, 9)).unwrap();
        let headers = if ipv6 { 48 } else { 28 };
        let fits = vec![0; usize::from(session.mtu_bytes) - headers];
        let too_big = vec![0; fits.len() + 1];
        // Where a router reports it, the first packet is sent before the ICMP message arrives.
        let refused = || {
            socket
                .send(&too_big)
                .is_err_and(|error| error.raw_os_error() == Some(Errno::EMSGSIZE as i32))
        };
        let start = std::time::Instant::now();
        while !refused() {
            assert!(
                start.elapsed() < crate::rig::TIMEOUT,
                "no ICMP for {address}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        // The port is closed, so the kernel of the peer may report an error.
        let _ = socket.send(&fits);
    }
}

/// The datagrams of a greedy client every two milliseconds in each direction: 60 Mb/s.
const GREEDY: usize = 15;

/// The number, size and interval of the datagrams of a modest client: 5 Mb/s.
const MODEST: u32 = 1000;
const MODEST_BYTES: usize = 1000;
const MODEST_EVERY: Duration = Duration::from_micros(1600);

#[test]
fn a_greedy_client_leaves_a_modest_one_its_share() {
    let rig = Rig::new();
    let _server = rig.server(0, "nat = false", "");
    let tls = rig.authority.credentials(rig.folder.path(), "greedy");
    let config = format!(
        "[tunnel]\nname = \"greedy\"\nstate = \"{}\"\n{tls}[[server]]\nname = \"one\"\n\
         addresses = [\"203.0.0.1:{PORT}\"]\n[[uplink]]\ninterface = \"net\"\n",
        rig.folder.path().display()
    );
    // Its path and not the machine is what it congests.
    let host = &rig.servers[1];
    Rig::limit(host, "net", "20mbit", "50ms");
    Rig::limit(&rig.router, "to1", "20mbit", "50ms");
    let greedy = rig.start(host, "greedy", "client", &config);
    let _modest = rig.client("");
    let floods = [
        Flood::of(host, [10, 77, 0, 1].into(), vec![1000; GREEDY], EVERY),
        Flood::of(
            &rig.servers[0],
            greedy.session().addresses[0],
            vec![1000; GREEDY],
            EVERY,
        ),
    ];
    greedy.until("the flood goes up and down", |status| {
        status.sessions[0].sent_mbps > 5.0 && status.sessions[0].received_mbps > 5.0
    });
    greedy.wait_until_counted("congested", 1);

    // Retried, because other load on the machine slows down both clients.
    let start = std::time::Instant::now();
    loop {
        let count = answered(&rig);
        if count >= MODEST as usize * 98 / 100 {
            break;
        }
        assert!(start.elapsed() < TIMEOUT, "{count} of {MODEST} came back");
    }
    drop(floods);
}

/// Returns how many datagrams from the client came back from the host.
fn answered(rig: &Rig) -> usize {
    let bind = |namespace: &Namespace, address: &str| {
        let socket = namespace.run(|| UdpSocket::bind((address, 0)).unwrap());
        let socket = socket.unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        socket
    };
    let (host, socket) = (bind(&rig.host, HOST4), bind(&rig.client, "0.0.0.0"));
    let target = host.local_addr().unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2000];
            while let Ok((length, from)) = host.recv_from(&mut buffer) {
                host.send_to(&buffer[..length], from).unwrap();
            }
        });
        scope.spawn(|| {
            for number in 0..MODEST {
                thread::sleep((MODEST_EVERY * number).saturating_sub(start.elapsed()));
                socket.send_to(&[0; MODEST_BYTES], target).unwrap();
            }
        });
        let mut back = 0;
        while back < MODEST as usize && socket.recv(&mut [0; 2000]).is_ok() {
            back += 1;
        }
        back
    })
}

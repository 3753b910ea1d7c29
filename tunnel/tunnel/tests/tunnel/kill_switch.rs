//! The kill switch: no packets to the client's routes leave outside the tunnel, in any state of the
//! client.

use crate::process;
use crate::rig::{End, HOST4, HOST6, PORT, Rig, TIMEOUT, nft};
use crate::traffic::{Connection, echo, echo_marked};
use hawser_testbed::netns::Namespace;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{BindToDevice, Mark};
use nix::unistd::{Uid, setfsuid};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Addresses outside the tunnel that the configuration allows. A packet that arrives there shows
/// that all earlier packets have arrived, too.
const SENTINEL: [&str; 2] = ["10.1.0.2", "10.1.1.2"];

const BYPASS: &str = "bypass = [\"10.1.0.0/23\", \"10.9.0.0/24\"]\n";

const ALL: &str = "[\"0.0.0.0/0\", \"::/0\"]";

/// A client with a network behind it, and a router that counts packets to the host that arrive
/// outside the tunnel.
struct Car {
    rig: Rig,
    behind: Namespace,
}

impl Car {
    fn new() -> Car {
        let rig = Rig::new();
        let behind = rig.network_behind_the_client();
        nft(
            &rig.router,
            &format!(
                "table inet bare {{\ncounter ipv4 {{}}\ncounter ipv6 {{}}\ncounter sentinel {{}}\n\
                 chain arrives {{\ntype filter hook prerouting priority raw;\n\
                 iifname \"wan*\" ip daddr {HOST4} counter name ipv4\n\
                 iifname \"wan*\" ip6 daddr {HOST6} counter name ipv6\n\
                 iifname \"wan*\" ip daddr {{ {}, {} }} udp dport 9 counter name sentinel\n}}\n}}",
                SENTINEL[0], SENTINEL[1]
            ),
        );
        let car = Car { rig, behind };
        car.wait_until_open();
        car
    }

    /// Waits until packets of both families arrive outside the tunnel.
    fn wait_until_open(&self) {
        until("packets arrive outside the tunnel", || {
            self.leaked().iter().all(|count| *count >= 5)
        });
    }

    fn counted(&self, name: &str) -> u64 {
        let counter = nft(&self.rig.router, &format!("list counter inet bare {name}"));
        let mut words = counter
            .split_whitespace()
            .skip_while(|word| *word != "packets");
        words.nth(1).unwrap().parse().unwrap()
    }

    /// Sends datagrams of both families to the host, from the client and from the network behind
    /// it; returns how many of each family arrived outside the tunnel.
    fn leaked(&self) -> [u64; 2] {
        self.counted_during(|| {
            for from in [&self.behind, &self.rig.client] {
                for to in [HOST4, HOST6] {
                    send(from, to, 5);
                }
            }
        })
    }

    /// Returns how many datagrams of each family that the client sends with a firewall mark arrived
    /// outside the tunnel, of five.
    fn leaked_with(&self, mark: u32) -> [u64; 2] {
        self.counted_during(|| {
            for to in [HOST4, HOST6] {
                send_marked(&self.rig.client, to, 5, mark);
            }
        })
    }

    /// Returns how many datagrams to the host of each family arrived outside the tunnel.
    fn counted_during(&self, send_all: impl FnOnce()) -> [u64; 2] {
        let before = ["ipv4", "ipv6"].map(|family| self.counted(family));
        send_all();
        for sentinel in SENTINEL {
            let before = self.counted("sentinel");
            until("the sentinel arrives", || {
                send(&self.rig.client, sentinel, 1);
                self.counted("sentinel") > before
            });
        }
        [0, 1].map(|family| self.counted(["ipv4", "ipv6"][family]) - before[family])
    }

    fn config(&self, more: &str, server: &str) -> String {
        let tls = self
            .rig
            .authority
            .credentials(self.rig.folder.path(), "car");
        format!(
            "[tunnel]\nname = \"car\"\nstate = \"{}\"\nmasquerade = true\n{more}\n{tls}\
             [[server]]\nname = \"one\"\naddresses = [\"{server}:{PORT}\"]\n[[uplink]]\ninterface = \"wan*\"\n",
            self.rig.folder.path().display()
        )
    }

    fn start(&self, more: &str) -> End {
        let client = self.rig.start(
            &self.rig.client,
            "car",
            "client",
            &self.config(more, "203.0.0.1"),
        );
        client.until("the client runs", |_| true);
        client
    }

    /// Runs a one-shot client command; returns whether it succeeded.
    fn command(&self, option: &str, more: &str) -> bool {
        let file = self.rig.path("once.toml");
        std::fs::write(&file, self.config(more, "203.0.0.1")).unwrap();
        let mut once = process::start(&self.rig.client, &format!("tunnel client {option}"), &file);
        let mut ended = None;
        until("the command ends", || {
            ended = once.ended().unwrap();
            ended.is_some()
        });
        ended.unwrap().success()
    }

    fn assert_served(&self) {
        for from in [&self.rig.client, &self.behind] {
            for address in [HOST4, HOST6] {
                echo(from, &self.rig.host, address);
            }
        }
    }
}

impl Drop for Car {
    fn drop(&mut self) {
        // A failed test has already reported why; this must not hide it.
        let _ = self.behind.delete();
    }
}

/// Sends `count` datagrams, except those that the kernel rejects.
fn send(from: &Namespace, to: &str, count: usize) {
    send_marked(from, to, count, 0);
}

/// Sends `count` datagrams with a firewall mark, except those that the kernel rejects.
fn send_marked(from: &Namespace, to: &str, count: usize, mark: u32) {
    let to: IpAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from.run(|| UdpSocket::bind(any).unwrap()).unwrap();
    setsockopt(&socket, Mark, &mark).unwrap();
    for _ in 0..count {
        let _ = socket.send_to(b"bare", (to, 9));
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIMEOUT, "timed out: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn switch(routes: &str) -> String {
    format!("routes = {routes}\nkill_switch = true\n{BYPASS}")
}

fn has_session(client: &End) {
    client.until("there is a session over both uplinks", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.paths.len() == 2)
    });
}

#[test]
fn without_a_kill_switch_packets_leave_without_a_session() {
    let car = Car::new();
    let _client = car.start(&format!("routes = {ALL}"));
    car.wait_until_open();
}

#[test]
fn a_kill_switch_blocks_before_and_between_sessions() {
    let car = Car::new();
    let client = car.start(&switch(ALL));
    assert_eq!(car.leaked(), [0, 0], "before the first session");
    let server = car.rig.server(0, "", "");
    has_session(&client);
    car.assert_served();
    assert_eq!(car.leaked(), [0, 0], "with a session");
    let before = client.session().since_unix_ms;
    drop(server);
    assert_eq!(car.leaked(), [0, 0], "while no server answers");
    let _server = car.rig.server(0, "", "");
    client.until("there is another session over both uplinks", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.since_unix_ms > before && session.paths.len() == 2)
    });
    car.assert_served();
}

#[test]
fn a_kill_switch_outlives_its_client_until_released() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    let client = car.start(&switch(ALL));
    has_session(&client);
    drop(client);
    assert_eq!(car.leaked(), [0, 0], "after kill -9");

    let client = car.start(&switch(ALL));
    has_session(&client);
    car.assert_served();
    assert!(
        !car.command("--release", &switch(ALL)),
        "the client keeps it closed"
    );
    let table = || {
        nft(
            &car.rig.client,
            "list table inet hawser_hawser_tun_kill_switch",
        )
    };
    assert!(
        table().contains("10.9.0.0/24"),
        "a network behind the client, which the file leaves open"
    );
    let bypass = format!("routes = {ALL}\nkill_switch = true\nbypass = [\"10.1.0.0/23\"]\n");
    assert!(car.command("--close", &bypass), "there is nothing to do");
    assert!(table().contains("10.9.0.0/24"), "the client's rules stay");
    let restored = client.until("a status", |_| true).tables_restored;
    assert_eq!(restored, 0, "no other program has changed them");
    assert!(client.process.stop(TIMEOUT).unwrap().success());
    assert_eq!(car.leaked(), [0, 0], "after an orderly end");

    assert!(car.command("--release", &switch(ALL)));
    car.wait_until_open();
    assert!(car.command("--close", &switch(ALL)));
    assert_eq!(car.leaked(), [0, 0], "closed before the client runs");

    // Without `kill_switch` in its file, a client removes the rules of an earlier one.
    let client = car.start(&format!("routes = [\"{HOST4}/32\"]"));
    has_session(&client);
    until("IPv6 leaves bare", || {
        let [ipv4, ipv6] = car.leaked();
        assert_eq!(ipv4, 0, "it is routed into the tunnel");
        ipv6 >= 5
    });
}

#[test]
fn changed_rules_are_restored_and_counted() {
    let car = Car::new();
    let client = car.start(&switch(ALL));
    let table = "inet hawser_hawser_tun_kill_switch";
    let mut restored = 0;
    // The client has two tables: the kill switch and the address translation.
    let changes = [
        "flush ruleset".to_owned(),
        format!("delete table {table}"),
        format!("flush chain {table} closed"),
    ];
    for (change, tables) in changes.iter().zip([2, 1, 1]) {
        nft(&car.rig.client, change);
        restored += tables;
        client.until(&format!("made again after {change}"), |status| {
            let name = format!("nftables table {}", table.trim_start_matches("inet "));
            let mut found = status.deviations.iter();
            status.tables_restored == restored
                && found.any(|found| found.name == name && found.restored)
        });
        assert_eq!(car.leaked(), [0, 0], "after {change}");
    }
    let _server = car.rig.server(0, "", "");
    has_session(&client);
    car.assert_served();
    assert_eq!(
        client.until("a status", |_| true).tables_restored,
        restored,
        "not more often than necessary"
    );
}

#[test]
fn rules_flushed_during_a_start_are_restored() {
    let car = Car::new();
    let is_running = AtomicBool::new(false);
    let client = thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            while !nft(&car.rig.client, "list tables inet").contains("_kill_switch") {
                thread::sleep(Duration::from_millis(1));
            }
            nft(&car.rig.client, "flush ruleset");
            assert!(
                !is_running.load(Ordering::SeqCst),
                "the client is still starting"
            );
        });
        let client = car.start(&switch(ALL));
        is_running.store(true, Ordering::SeqCst);
        flushing.join().unwrap();
        client
    });
    client.until("made again", |status| status.tables_restored >= 1);
    until("nothing leaves bare", || car.leaked() == [0, 0]);
    let _server = car.rig.server(0, "", "");
    has_session(&client);
    car.assert_served();
    assert_eq!(car.leaked(), [0, 0]);
}

#[test]
fn ipv6_that_does_not_fit_inside_does_not_leave_bare() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    for end in [&car.rig.client, &car.rig.router] {
        end.ip("link set wan1 mtu 1280").unwrap();
    }
    let client = car.start(&switch(ALL));
    has_session(&client);
    client.until("the narrow uplink counts", |status| {
        status.sessions[0].mtu_bytes < 1280
    });
    let by = || {
        hawser_io::interface::route(HOST6.parse().unwrap(), None)
            .unwrap()
            .interface
    };
    until("IPv6 is not routed into the tunnel", || {
        car.rig.client.run(by).unwrap() != "hawser-tun"
    });
    assert_eq!(car.leaked(), [0, 0]);
    let connection = Connection::open(&car.rig.client, &car.rig.host, HOST4);
    connection.wait_for_progress();
    connection.end();
}

#[test]
fn routes_of_one_family_leave_nothing_of_the_other_open() {
    let car = Car::new();
    for routes in ["[\"0.0.0.0/0\"]", "[\"::/0\"]", "[\"198.51.100.0/24\"]"] {
        let client = car.start(&switch(routes));
        assert_eq!(car.leaked(), [0, 0], "{routes}, without a session");
        let _server = car.rig.server(0, "", "");
        has_session(&client);
        assert_eq!(car.leaked(), [0, 0], "{routes}, with a session");
        assert!(client.process.stop(TIMEOUT).unwrap().success());
        assert!(car.command("--release", &switch(routes)));
        car.wait_until_open();
    }
}

#[test]
fn ipv6_without_an_inner_address_is_not_swallowed() {
    let car = Car::new();
    let ipv4 = "addresses = [\"10.77.0.0/16\"]";
    let _server = car.rig.server(0, ipv4, "");
    let said = |client: &End, text: &str| {
        client.until(text, |status| {
            let mut found = status.deviations.iter();
            found.any(|found| found.name == "IPv6 inside hawser-tun" && found.what.contains(text))
        });
    };
    let client = car.start(&format!("routes = {ALL}\n{BYPASS}"));
    has_session(&client);
    said(&client, "leave outside");
    assert_eq!(car.leaked(), [0, 10]);
    assert!(client.process.stop(TIMEOUT).unwrap().success());
    let client = car.start(&switch(ALL));
    has_session(&client);
    said(&client, "`kill_switch` blocks IPv6");
    assert_eq!(car.leaked(), [0, 0]);
    echo(&car.rig.client, &car.rig.host, HOST4);
}

#[test]
fn destinations_in_bypass_never_enter_the_tunnel_and_others_do() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    for kill_switch in ["", "kill_switch = true\n"] {
        let more = format!(
            "routes = {ALL}\n{kill_switch}bypass = [\"10.1.0.0/23\", \"198.51.100.8/30\", \"10.9.0.0/24\"]\n"
        );
        let client = car.start(&more);
        has_session(&client);
        assert_eq!(car.leaked(), [10, 0], "with a session, {kill_switch}");
        echo(&car.rig.client, &car.rig.host, HOST6);
        echo(&car.behind, &car.rig.host, HOST6);
        assert!(client.process.stop(TIMEOUT).unwrap().success());
        assert!(
            kill_switch.is_empty() || car.leaked() == [10, 0],
            "after the end"
        );
    }
}

/// The mark of packets that stay outside the tunnel, or of those that enter it.
const CHOSEN: u32 = 0x10;

#[test]
fn firewall_marks_choose_what_enters_with_a_table() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    car.rig
        .client
        .sysctl("net.ipv4.conf.default.rp_filter", "1")
        .unwrap();
    let rule = |rule: &str| {
        for family in ["-4", "-6"] {
            let mut command = car.rig.client.command("ip").unwrap();
            command.arg(family).arg("rule").args(rule.split(' '));
            assert!(command.status().unwrap().success(), "{rule}");
        }
    };
    let table = format!("routes = {ALL}\ntable = 100\n");
    let client = car.start(&table);
    has_session(&client);
    assert_eq!(car.leaked(), [10, 10], "no rule leads to the table");
    rule("add fwmark 0x10 lookup 100");
    assert_eq!(car.leaked(), [10, 10], "without the mark");
    for address in [HOST4, HOST6] {
        echo_marked(&car.rig.client, &car.rig.host, address, CHOSEN);
    }
    assert_eq!(car.leaked_with(CHOSEN), [0, 0], "only marked ones enter");
    rule("del fwmark 0x10 lookup 100");
    assert!(client.process.stop(TIMEOUT).unwrap().success());

    let switch = format!("{table}kill_switch = true\nbypass_marks = [0x10]\n{BYPASS}");
    rule("add priority 100 lookup main suppress_prefixlength 0");
    rule("add priority 101 not fwmark 0x10 lookup 100");
    let client = car.start(&switch);
    has_session(&client);
    car.assert_served();
    assert_eq!(car.leaked_with(CHOSEN), [5, 5], "marked ones stay outside");
    assert_eq!(
        car.leaked_with(0x11),
        [0, 0],
        "those of another mark do not"
    );
    assert_eq!(car.leaked(), [0, 0]);
    drop(client);
    assert_eq!(car.leaked(), [0, 0], "after kill -9");
    assert_eq!(car.leaked_with(CHOSEN), [5, 5], "after kill -9");
}

#[test]
fn a_kill_switch_lets_out_only_what_an_uplink_needs() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    let more = format!("routes = {ALL}\nkill_switch = true\n");
    // The outer packets are IPv6, which needs neighbour discovery.
    car.rig.client.ip("neigh flush all").unwrap();
    let config = car.config(&more, "[fd20:0::1]");
    let client = car.rig.start(&car.rig.client, "car", "client", &config);
    has_session(&client);
    let sends = |own: &str, to: &str| {
        let socket = car
            .rig
            .client
            .run(|| UdpSocket::bind(own).unwrap())
            .unwrap();
        setsockopt(&socket, BindToDevice, &"wan0".into()).unwrap();
        socket.send_to(b"?", to).is_ok()
    };
    assert!(sends("10.1.0.1:68", "10.1.0.2:67"), "a lease is renewed");
    assert!(
        sends("10.1.0.1:0", "224.0.0.251:5353"),
        "neighbours on the link"
    );
    assert!(!sends("10.1.0.1:0", "10.1.0.2:67"), "no client of DHCP");
    assert!(
        !sends("10.1.0.1:0", &format!("203.0.0.1:{PORT}")),
        "another process at the server's port"
    );
    assert!(
        !sends("[fd01:0::1]:0", &format!("[fd20:0::1]:{PORT}")),
        "the same over IPv6"
    );

    // A process with CAP_NET_RAW can set the mark.
    let sends_marked = |user: u32, own: &str, to: &str| {
        let send = || {
            setfsuid(Uid::from_raw(user));
            let socket = UdpSocket::bind(own).unwrap();
            setsockopt(&socket, BindToDevice, &"wan0".into()).unwrap();
            setsockopt(&socket, Mark, &14752).unwrap();
            socket.send_to(b"?", to).is_ok()
        };
        car.rig.client.run(send).unwrap()
    };
    let server = format!("[fd20:0::1]:{PORT}");
    assert!(
        sends_marked(0, "[fd01:0::1]:0", &server),
        "the tunnel's own packets"
    );
    assert!(
        !sends_marked(65534, "[fd01:0::1]:0", &server),
        "those of another user"
    );
    assert!(
        !sends_marked(0, "[fd01:0::1]:0", "[fd20:0::1]:443"),
        "to another port of the server"
    );
    assert!(
        !sends_marked(0, "[fd01:0::1]:0", &format!("[{HOST6}]:{PORT}")),
        "to another machine"
    );
    assert!(
        !sends_marked(0, "10.1.0.1:0", &format!("203.0.0.1:{PORT}")),
        "to an address that the file does not name"
    );
}

/// A socket at a port of its own that has joined a group on the interface with this address or number.
fn member(namespace: &Namespace, group: IpAddr, own: &str, interface: u32) -> UdpSocket {
    let join = || match group {
        IpAddr::V4(group) => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.join_multicast_v4(&group, &own.parse().unwrap())?;
            Ok(socket)
        }
        IpAddr::V6(group) => {
            let socket = UdpSocket::bind("[::]:0").unwrap();
            socket.join_multicast_v6(&group, interface)?;
            Ok::<_, std::io::Error>(socket)
        }
    };
    let socket = namespace.run(join).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

#[test]
fn multicast_stays_in_the_networks_of_the_node() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    let node = &car.rig.client;
    let number = |namespace: &Namespace, interface: &str| {
        let number = || hawser_io::interface::index(interface).unwrap();
        namespace.run(number).unwrap()
    };
    let (lan, eth) = (number(node, "lan"), number(&car.behind, "lan"));
    let wan0 = number(node, "wan0");
    let ends = [
        // Between processes of the node, and in the network behind it, in both directions.
        (node, "10.9.0.1", lan, node, "10.9.0.1", lan),
        (node, "10.9.0.1", lan, &car.behind, "10.9.0.2", eth),
        (&car.behind, "10.9.0.2", eth, node, "10.9.0.1", lan),
        // The kernel chooses the interface, as it does without a tunnel.
        (node, "0.0.0.0", wan0, node, "10.1.0.1", wan0),
    ];
    for config in [format!("routes = {ALL}"), switch(ALL)] {
        let client = car.start(&config);
        has_session(&client);
        for (from, own, interface, to, joined, joined_at) in ends {
            // ROS 2, and mDNS over IPv6.
            for group in ["239.255.0.1", "ff02::fb"] {
                let group: IpAddr = group.parse().unwrap();
                let member = member(to, group, joined, joined_at);
                let port = member.local_addr().unwrap().port();
                let (own, destination) = match group {
                    IpAddr::V4(_) => (format!("{own}:0"), (group, port).into()),
                    IpAddr::V6(group) => {
                        let on_link = SocketAddrV6::new(group, port, 0, interface);
                        ("[::]:0".to_owned(), SocketAddr::from(on_link))
                    }
                };
                let sender = from.run(|| UdpSocket::bind(own).unwrap()).unwrap();
                until(&format!("{destination} reaches {joined}, {config}"), || {
                    sender.send_to(b"here", destination).unwrap();
                    thread::sleep(Duration::from_millis(1));
                    member.recv(&mut [0; 8]).is_ok()
                });
            }
        }
    }
}

#[test]
fn local_discovery_by_a_later_uplink_stays_outside() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    rig.client
        .ip("link set wan0 down\nlink set wan1 down")
        .unwrap();
    let client = rig.start_client("car", &format!("routes = {ALL}\n"));
    client.until("it runs", |_| true);
    rig.client
        .ip("link set wan0 up\nroute add default via 10.1.0.2 dev wan0 metric 100")
        .unwrap();
    client.session();
    let by = |address: &str| {
        let address = address.parse().unwrap();
        let route = || hawser_io::interface::route(address, None).unwrap();
        rig.client.run(route).unwrap().interface
    };
    until("packets enter the tunnel", || by(HOST4) == "hawser-tun");
    for local in ["255.255.255.255", "224.0.0.251", "ff02::fb"] {
        assert_eq!(by(local), "wan0", "{local}");
    }
}

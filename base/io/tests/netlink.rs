//! Links, addresses, routes and neighbours that are changed over netlink. The reference is `ip` of
//! iproute2.

use hawser_io::interface::{self, Interface, LinkHeader};
use hawser_io::netlink::{self, Address, Error, LinkChange, Route};
use hawser_io::segmenter::{Segmenter, Traffic};
use hawser_io::tun;
use hawser_testbed::netns::Namespace;
use nix::errno::Errno;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A namespace with a TUN device `tun0` and an Ethernet device `eth0`, whose other end is in a
/// namespace of its own and has the address `.2`.
struct Machine {
    namespace: Namespace,
    peer: Namespace,
    _tun: OwnedFd,
}

impl Machine {
    fn create(name: &str) -> Machine {
        let make = |role: &str| {
            let id = std::process::id();
            let namespace = Namespace::create(format!("hawser-netlink-{name}-{role}-{id}"));
            let namespace = namespace.unwrap();
            // Addresses are usable at once.
            namespace
                .sysctl("net.ipv6.conf.default.accept_dad", "0")
                .unwrap();
            namespace
        };
        let (namespace, peer) = (make("own"), make("peer"));
        let tun = namespace
            .run(|| tun::open("tun0", libc::IFF_TUN).unwrap())
            .unwrap()
            .0;
        let other = peer.name();
        namespace
            .ip(&format!(
                "link add eth0 address 02:00:00:00:00:01 type veth peer name eth0 address 02:00:00:00:00:02 netns {other}\n\
                 addr add 192.0.2.1/24 dev eth0\naddr add fd02::1/64 dev eth0\nlink set eth0 up"
            ))
            .unwrap();
        peer.ip("addr add 192.0.2.2/24 dev eth0\naddr add fd02::2/64 dev eth0\nlink set eth0 up")
            .unwrap();
        Machine {
            namespace,
            peer,
            _tun: tun,
        }
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(work).unwrap()
    }

    /// Returns all that iproute2 shows about the namespace, without its name and the addresses that
    /// the kernel draws at random.
    fn shown(&self) -> Vec<String> {
        let show = |arguments: &str| {
            let mut ip = self.namespace.command("ip").unwrap();
            let output = ip.arg("-d").args(arguments.split(' ')).output().unwrap();
            assert!(output.status.success(), "{arguments}");
            String::from_utf8(output.stdout).unwrap()
        };
        let shown = [
            "link show",
            "addr show",
            "route show table all",
            "-6 route show table all",
            "rule show",
            "-6 rule show",
        ];
        let shown = shown.map(show).concat();
        let is_random = |word: &str| {
            let colons = word.matches(':').count();
            let is_mac = word.len() == 17 && colons == 5;
            is_mac || word.starts_with("fe80::") && colons > 4 || word.starts_with("hawser-")
        };
        let line = |line: &str| {
            let words = line.split(' ').filter(|word| !is_random(word));
            words.collect::<Vec<_>>().join(" ")
        };
        shown.lines().map(line).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.namespace.delete().unwrap();
        self.peer.delete().unwrap();
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(address: &str, prefix_length: u8, interface: &str) -> Address {
    Address {
        address: ip(address),
        prefix_length,
        interface: interface.to_owned(),
    }
}

fn route(destination: &str, prefix_length: u8, interface: &str) -> Route {
    Route::new(ip(destination), prefix_length, interface)
}

/// A route as those that an agent installs.
fn agents(destination: &str, next_hop: &str, source: &str, metric: u32) -> Route {
    Route {
        next_hop: Some(ip(next_hop)),
        source: Some(ip(source)),
        metric: Some(metric),
        mtu_bytes: Some(1400),
        protocol: Some(72),
        ..route(destination, 16, "eth0")
    }
}

/// A route as those of a tunnel server to its clients.
fn to_client(destination: &str, prefix_length: u8, mtu_bytes: u32) -> Route {
    Route {
        mtu_bytes: Some(mtu_bytes),
        is_mtu_locked: true,
        ..route(destination, prefix_length, "tun0")
    }
}

/// Two equal machines, one of which `ip` changes.
struct Comparison {
    own: Machine,
    reference: Machine,
}

impl Comparison {
    fn create(name: &str, set_up: &str) -> Comparison {
        let comparison = Comparison {
            own: Machine::create(&format!("{name}-own")),
            reference: Machine::create(&format!("{name}-ref")),
        };
        for machine in [&comparison.own, &comparison.reference] {
            machine.namespace.ip(set_up).unwrap();
        }
        comparison
    }

    /// Checks that `change` has the effect of the commands in `batch`, and has an effect at all.
    fn same(&self, batch: &str, change: impl FnOnce() -> Result<(), Error> + Send) {
        let before = self.own.shown();
        self.reference.namespace.ip(batch).unwrap();
        self.own.run(change).unwrap();
        assert_ne!(self.own.shown(), before, "{batch}");
        self.assert_same(batch);
    }

    /// Checks that `change` succeeds and has no effect.
    fn unchanged(&self, change: impl FnOnce() -> Result<(), Error> + Send) {
        self.own.run(change).unwrap();
        self.assert_same("nothing");
    }

    fn assert_same(&self, after: &str) {
        // The kernel updates the state of devices a little later.
        let deadline = Instant::now() + TIMEOUT;
        while self.own.shown() != self.reference.shown() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.own.shown(), self.reference.shown(), "{after}");
    }
}

#[test]
fn links_are_changed_as_by_iproute2() {
    let machines = Comparison::create("links", "link set lo up");
    let tunnel = LinkChange {
        mtu_bytes: Some(1440),
        no_generated_addresses: true,
        up: true,
        ..LinkChange::default()
    };
    machines.same("link set tun0 addrgenmode none mtu 1440 up", || {
        tunnel.apply("tun0")
    });
    machines.unchanged(|| tunnel.apply("tun0"));
    let server = LinkChange {
        group: Some(14752),
        queue_packets: Some(2000),
        ..LinkChange::default()
    };
    machines.same("link set tun0 group 14752 txqueuelen 2000", || {
        server.apply("tun0")
    });
    let without_neighbours = LinkChange {
        mtu_bytes: Some(1300),
        no_generated_addresses: true,
        no_arp: true,
        up: true,
        ..LinkChange::default()
    };
    machines.same("link set eth0 mtu 1300 addrgenmode none arp off up", || {
        without_neighbours.apply("eth0")
    });
    machines.same(
        "link add in9 mtu 1400 type veth peer name out9 mtu 1400",
        || netlink::create_veth(["in9", "out9"], 1400),
    );
    machines.same("link delete in9", || netlink::delete_link("in9"));
}

#[test]
fn addresses_are_changed_as_by_iproute2() {
    let machines = Comparison::create("addresses", "link set tun0 addrgenmode none mtu 1440 up");
    let addresses = [
        address("10.77.0.1", 16, "tun0"),
        address("10.77.0.2", 16, "tun0"),
        address("fd77::1", 64, "tun0"),
    ];
    let replace = || addresses.iter().try_for_each(Address::replace);
    machines.same(
        "address replace 10.77.0.1/16 dev tun0\naddress replace 10.77.0.2/16 dev tun0\n\
         address replace fd77::1/64 dev tun0 nodad",
        replace,
    );
    machines.unchanged(replace);
    let add = |is_missing: bool| {
        let mut addresses = addresses.iter();
        addresses.try_for_each(|address| address.add().map(|added| assert_eq!(added, is_missing)))
    };
    machines.unchanged(|| add(false));
    machines.same("address flush dev tun0", || {
        netlink::flush_addresses("tun0")
    });
    machines.same(
        "address add 10.77.0.1/16 dev tun0\naddress add 10.77.0.2/16 dev tun0\n\
         address add fd77::1/64 dev tun0 nodad",
        || add(true),
    );
    machines.same("address flush dev tun0", || {
        netlink::flush_addresses("tun0")
    });
    machines.unchanged(|| netlink::flush_addresses("tun0"));
    let node = [
        address("10.99.0.1", 32, "lo"),
        address("fd99::1", 128, "lo"),
    ];
    machines.same(
        "address replace 10.99.0.1/32 dev lo\naddress replace fd99::1/128 dev lo nodad",
        || node.iter().try_for_each(Address::replace),
    );
    machines.same(
        "address delete 10.99.0.1/32 dev lo\naddress delete fd99::1/128 dev lo nodad",
        || node.iter().try_for_each(Address::delete),
    );
}

#[test]
fn routes_of_an_agent_are_changed_as_by_iproute2() {
    let machines = Comparison::create(
        "agent",
        "address add 10.99.0.1/32 dev lo\naddress add fd99::1/128 dev lo nodad",
    );
    let routes = [
        agents("10.98.0.0", "192.0.2.2", "10.99.0.1", 1000),
        agents("10.97.0.0", "fe80::2", "10.99.0.1", 1001),
        agents("fd98::", "fd02::2", "fd99::1", 2000),
    ];
    let batch = |verb: &str| -> String {
        let line = |route: &Route| format!("route {verb} {route}\n");
        routes.iter().map(line).collect()
    };
    let replace = || routes.iter().try_for_each(Route::replace);
    machines.same(&batch("replace"), replace);
    machines.unchanged(replace);
    let smaller = Route {
        mtu_bytes: Some(1300),
        ..routes[0].clone()
    };
    machines.same(&format!("route replace {smaller}"), || smaller.replace());
    let batch = batch("delete").replacen("1400", "1300", 1);
    machines.same(&batch, || {
        smaller.delete()?;
        routes[1..].iter().try_for_each(Route::delete)
    });
}

#[test]
fn routes_of_a_tunnel_are_changed_as_by_iproute2() {
    let machines = Comparison::create(
        "tunnel",
        "link set tun0 addrgenmode none mtu 1440 up\nroute add 198.51.100.0/24 via 192.0.2.2\n\
         route add fd98::/16 via fd02::2",
    );
    let v4 = route("198.51.100.0", 24, "tun0");
    let v6 = Route {
        metric: Some(1),
        ..route("fd98::", 16, "tun0")
    };
    machines.same(
        "route prepend 198.51.100.0/24 dev tun0\nroute replace fd98::/16 dev tun0 metric 1",
        || {
            v4.prepend()
                .map(|added| assert!(added))
                .and_then(|()| v6.replace())
        },
    );
    // An entry that is there is not added again.
    machines.unchanged(|| v4.prepend().map(|added| assert!(!added)));
    machines.unchanged(|| v6.prepend().map(|added| assert!(!added)));
    let everything = [route("0.0.0.0", 0, "tun0"), route("::", 0, "tun0")];
    machines.same(
        "route prepend 0.0.0.0/0 dev tun0\nroute prepend ::/0 dev tun0",
        || {
            everything
                .iter()
                .try_for_each(|route| route.prepend().map(drop))
        },
    );
    machines.same("route delete 198.51.100.0/24 dev tun0", || v4.delete());
    let clients = [
        to_client("10.77.0.5", 32, 1400),
        to_client("fd77::5", 128, 1400),
    ];
    machines.same(
        "route replace 10.77.0.5/32 dev tun0 mtu lock 1400\nroute replace fd77::5/128 dev tun0 mtu lock 1400",
        || clients.iter().try_for_each(Route::replace),
    );
    let v4_client = to_client("10.77.0.5", 32, 1200);
    machines.same("route replace 10.77.0.5/32 dev tun0 mtu lock 1200", || {
        v4_client.replace()
    });
    // A route is found without its MTU and metric.
    machines.same(
        "route delete 10.77.0.5/32 dev tun0\nroute delete fd77::5/128 dev tun0",
        || {
            route("10.77.0.5", 32, "tun0").delete()?;
            route("fd77::5", 128, "tun0").delete()
        },
    );
    // The kernel removes the IPv6 configuration with this MTU.
    let small = LinkChange {
        mtu_bytes: Some(1200),
        ..LinkChange::default()
    };
    machines.same("link set tun0 mtu 1200", || small.apply("tun0"));
}

/// Returns the message of a failed change.
fn message(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_missing_interface_is_named() {
    let machine = Machine::create("missing");
    let none = || Err(Error::NoInterface("eth9".to_owned()));
    machine.run(|| {
        assert_eq!(LinkChange::default().apply("eth9"), none());
        assert_eq!(netlink::delete_link("eth9"), none());
        assert_eq!(netlink::flush_addresses("eth9"), none());
        assert_eq!(address("10.0.0.1", 32, "eth9").replace(), none());
        assert_eq!(address("10.0.0.1", 32, "eth9").delete(), none());
        assert_eq!(route("10.0.0.0", 8, "eth9").replace(), none());
        assert_eq!(route("10.0.0.0", 8, "eth9").delete(), none());
        assert_eq!(interface::find("eth9").map(drop), none());
        assert_eq!(interface::mtu_bytes("eth9").map(drop), none());
        let by = interface::route(ip("192.0.2.2"), Some("eth9"));
        assert_eq!(by.map(drop), none());
    });
}

#[test]
fn a_route_may_depend_on_the_source_address() {
    let machine = Machine::create("source");
    let change = |arguments: &str| {
        let mut ip = machine.namespace.command("ip").unwrap();
        assert!(ip.args(arguments.split(' ')).status().unwrap().success());
    };
    change("rule add from 192.0.2.1 table 100");
    change("route add default via 192.0.2.254 dev eth0 table 100");
    change("-6 rule add from fd02::1 table 100");
    change("-6 route add default via fd02::fe dev eth0 table 100");
    machine.run(|| {
        for (source, destination, next_hop) in [
            ("192.0.2.1", "203.0.113.1", "192.0.2.254"),
            ("fd02::1", "2001:db8::1", "fd02::fe"),
        ] {
            let found = interface::route_from(ip(source), ip(destination), "eth0").unwrap();
            assert_eq!(found.next_hop, ip(next_hop));
            let other = interface::route(ip(destination), Some("eth0"));
            assert!(other.is_err() || other.unwrap().next_hop != ip(next_hop));
        }
        let foreign = interface::route_from(ip("198.51.100.9"), ip("203.0.113.1"), "eth0");
        assert!(foreign.is_err(), "not an address of this machine");
    });
}

#[test]
fn a_second_removal_is_an_error() {
    let machine = Machine::create("twice");
    machine.run(|| {
        let v4 = route("10.98.0.0", 16, "eth0");
        v4.replace().unwrap();
        v4.delete().unwrap();
        assert!(v4.delete().unwrap_err().is(Errno::ESRCH));
        let v4 = address("10.99.0.1", 32, "lo");
        v4.replace().unwrap();
        v4.delete().unwrap();
        let error = v4.delete().unwrap_err();
        assert!(error.is(Errno::EADDRNOTAVAIL), "{error}");
        netlink::create_veth(["in9", "out9"], 1400).unwrap();
        let again = netlink::create_veth(["in9", "out9"], 1400).unwrap_err();
        assert!(again.is(Errno::EEXIST), "{again}");
        netlink::delete_link("out9").unwrap();
        let gone = Err(Error::NoInterface("in9".to_owned()));
        assert_eq!(netlink::delete_link("in9"), gone);
    });
}

#[test]
fn errors_carry_the_explanation_of_the_kernel() {
    let machine = Machine::create("errors");
    machine.run(|| {
        let unreachable = agents("10.98.0.0", "203.0.113.1", "192.0.2.1", 1000);
        assert_eq!(
            message(unreachable.replace()),
            format!("cannot replace route {unreachable}: Network is unreachable: Nexthop has invalid gateway")
        );
        let source = agents("10.98.0.0", "192.0.2.2", "10.1.2.3", 1000);
        assert_eq!(
            message(source.replace()),
            format!("cannot replace route {source}: Invalid argument: Invalid prefsrc address")
        );
        let large = LinkChange {
            mtu_bytes: Some(1 << 24),
            ..LinkChange::default()
        };
        assert_eq!(
            message(large.apply("eth0")),
            "cannot set interface eth0 mtu 16777216: Invalid argument: mtu greater than device maximum"
        );
        let long = "a-name-of-more-than-15-bytes";
        let error = message(netlink::create_veth([long, "out9"], 1400));
        assert!(error.contains(long), "{error}");
    });
}

/// The environment variable that makes the test below do the part of the process without the
/// capability.
const WITHOUT_CAPABILITY: &str = "HAWSER_NETLINK_WITHOUT_CAPABILITY";

#[test]
fn a_missing_capability_is_named() {
    let up = LinkChange {
        up: true,
        ..LinkChange::default()
    };
    if std::env::var_os(WITHOUT_CAPABILITY).is_some() {
        println!("{}", message(up.apply("eth0")));
        return;
    }
    let machine = Machine::create("capability");
    let mut again = machine.namespace.command("setpriv").unwrap();
    again
        .args(["--bounding-set", "-net_admin"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_missing_capability_is_named", "--nocapture"])
        .env(WITHOUT_CAPABILITY, "yes");
    let printed = String::from_utf8(again.output().unwrap().stdout).unwrap();
    let error =
        "cannot set interface eth0 up: Operation not permitted: this needs root or CAP_NET_ADMIN";
    assert!(printed.contains(error), "{printed}");
}

#[test]
fn interfaces_and_routes_are_found() {
    let machine = Machine::create("found");
    machine
        .namespace
        .ip(
            "link set tun0 mtu 1300 up\nroute add 10.98.0.0/16 via 192.0.2.2 mtu 1234\n\
             route add 10.97.0.0/16 via inet6 fe80::2 dev eth0\nroute add fd98::/16 via fd02::2\n\
             route add 10.96.0.0/16 dev tun0",
        )
        .unwrap();
    machine.run(|| {
        let Interface {
            name,
            index,
            mtu_bytes,
            mac,
        } = interface::find("eth0").unwrap();
        assert_eq!((name.as_str(), mtu_bytes), ("eth0", 1500));
        assert_eq!(
            (Some(index), mac),
            (interface::index("eth0"), [2, 0, 0, 0, 0, 1])
        );
        let tun = interface::find("tun0").unwrap_err();
        assert_eq!(tun, Error::NotEthernet("tun0".to_owned()));
        let tun = interface::link("tun0").unwrap();
        assert_eq!((tun.mac, tun.header), (None, LinkHeader::None));
        assert_eq!(interface::mtu_bytes("tun0").unwrap(), 1300);
        let found = |destination: &str, interface: Option<&str>| {
            let route = interface::route(ip(destination), interface).unwrap();
            (route.next_hop.to_string(), route.interface, route.mtu_bytes)
        };
        let route =
            |next_hop: &str, interface: &str, mtu| (next_hop.to_owned(), interface.to_owned(), mtu);
        assert_eq!(
            found("10.98.1.2", None),
            route("192.0.2.2", "eth0", Some(1234))
        );
        assert_eq!(found("10.97.1.2", None), route("fe80::2", "eth0", None));
        assert_eq!(found("fd98::7", None), route("fd02::2", "eth0", None));
        assert_eq!(found("10.96.1.2", None), route("10.96.1.2", "tun0", None));
        let by = found("192.0.2.2", Some("eth0"));
        assert_eq!(by, route("192.0.2.2", "eth0", None));
        let none = interface::route(ip("203.0.113.1"), None).unwrap_err();
        assert!(none.is(Errno::ENETUNREACH), "{none}");
    });
}

#[test]
fn unusable_addresses_are_left_out_and_deprecated_marked() {
    let machine = Machine::create("addresses");
    machine
        .namespace
        .ip("addr add 2001:db8::1/64 dev eth0 nodad\n\
             addr add 2001:db8::2/64 dev eth0 nodad preferred_lft 0\n\
             addr add 192.0.2.7/24 dev eth0\n\
             link set tun0 up\naddr add 10.9.0.1 peer 10.9.0.2 dev tun0")
        .unwrap();
    // Without a carrier, an address is not checked for duplicates.
    let checked = "net.ipv6.conf.eth0.accept_dad";
    machine.namespace.sysctl(checked, "1").unwrap();
    machine.peer.ip("link set eth0 down").unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let is_up = |line: &String| line.contains(" eth0@") && line.contains("state UP");
    while machine.shown().iter().any(is_up) {
        assert!(Instant::now() < deadline, "eth0 has a carrier");
        thread::sleep(Duration::from_millis(20));
    }
    machine
        .namespace
        .ip("addr add 2001:db8::3/64 dev eth0")
        .unwrap();
    let own = machine.run(|| interface::own_addresses().unwrap());
    let found = |address: &str| {
        let mut own = own.iter();
        let own = own.find(|own| own.address == ip(address))?;
        Some((own.interface.as_str(), own.is_deprecated))
    };
    assert_eq!(found("2001:db8::1"), Some(("eth0", false)));
    assert_eq!(found("2001:db8::2"), Some(("eth0", true)));
    assert_eq!(found("2001:db8::3"), None, "tentative");
    assert_eq!(found("10.9.0.1"), Some(("tun0", false)));
    assert_eq!(found("10.9.0.2"), None, "the peer's");
    let second = own.iter().find(|own| own.address == ip("192.0.2.7"));
    assert!(!second.unwrap().is_temporary);
}

#[test]
fn neighbours_are_resolved() {
    let machine = Machine::create("neighbours");
    machine.run(|| {
        let eth0 = interface::find("eth0").unwrap();
        let follow = |address: &str| interface::follow_neighbour(ip(address), &eth0).unwrap();
        for address in ["192.0.2.2", "fd02::2"] {
            let deadline = Instant::now() + TIMEOUT;
            let mut mac = follow(address);
            assert_eq!(mac, None);
            while mac.is_none() {
                assert!(Instant::now() < deadline, "{address} is not resolved");
                thread::sleep(Duration::from_millis(20));
                mac = follow(address);
            }
            assert_eq!(mac, Some([2, 0, 0, 0, 0, 2]));
        }
    });
    let by_hand = "neigh replace 192.0.2.7 lladdr 02:00:00:00:00:07 dev eth0 nud";
    let eth0 = machine.run(|| interface::find("eth0").unwrap());
    for (state, mac) in [("permanent", Some([2, 0, 0, 0, 0, 7])), ("noarp", None)] {
        machine.namespace.ip(&format!("{by_hand} {state}")).unwrap();
        let found = machine.run(|| interface::follow_neighbour(ip("192.0.2.7"), &eth0));
        assert_eq!(found.unwrap(), mac, "{state}");
    }
}

#[test]
fn a_segmenter_replaces_an_abandoned_one_and_is_removed() {
    let machine = Machine::create("segmenter");
    machine.run(|| {
        let eth0 = interface::find("eth0").unwrap();
        let abandoned = Segmenter::create(&eth0, Traffic::Leaving).unwrap();
        let segmenter = Segmenter::create(&eth0, Traffic::Leaving).unwrap();
        assert_ne!(abandoned.entry(), segmenter.entry());
        std::mem::forget(abandoned);
        let name = format!("hawser-in{}", eth0.index);
        assert_eq!(interface::index(&name), Some(segmenter.entry()));
        assert!(interface::up().unwrap().contains(&name));
        drop(segmenter);
        assert_eq!(interface::index(&name), None);
        let orphan = Interface {
            index: 9999,
            ..eth0.clone()
        };
        std::mem::forget(Segmenter::create(&orphan, Traffic::Arriving).unwrap());
        Segmenter::remove_orphans().unwrap();
        assert_eq!(interface::index("hawser-ti9999"), None);
    });
}

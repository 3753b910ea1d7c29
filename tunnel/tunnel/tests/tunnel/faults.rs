//! Servers that fail, exit, or come back, and devices that other programs change or remove.

use crate::rig::{End, GOES_ON, HOST4, HOST6, PORT, Rig, TIMEOUT, nft};
use crate::traffic::{Connection, Flood, echo};
use hawser_testbed::netns::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const NO_NAT: &str = "nat = false";

/// Part of the output for a route with an MTU.
const MTU: &str = "mtu lock 14";

fn name_of(session: &hawser_tunnel::status::SessionStatus) -> usize {
    if session.peer == "one" { 0 } else { 1 }
}

#[test]
fn connections_survive_the_death_of_a_server() {
    let rig = Rig::new();
    let mut servers = [0, 1].map(|number| Some(rig.server(number, NO_NAT, "")));
    let client = rig.client("");
    let before = client.session();
    let dying = name_of(&before);
    rig.route_back_by(dying);
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    connection.wait_for_progress();

    drop(servers[dying].take());
    let after = client.within(GOES_ON, "a session at the other server", |status| {
        status
            .sessions
            .iter()
            .any(|session| name_of(session) != dying)
    });
    assert_eq!(after.sessions[0].addresses, before.addresses);
    rig.route_back_by(1 - dying);
    connection.wait_for_progress();
    connection.end();
}

#[test]
fn a_hangup_does_not_end_a_client() {
    let rig = Rig::new();
    let _server = rig.server(0, NO_NAT, "");
    let mut client = rig.client("");
    let before = client.session();
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    kill(
        Pid::from_raw(client.process.id().try_into().unwrap()),
        Signal::SIGHUP,
    )
    .unwrap();
    connection.wait_for_progress();
    assert_eq!(client.process.ended().unwrap(), None);
    assert_eq!(
        client.session().since_unix_ms,
        before.since_unix_ms,
        "the session goes on"
    );
    connection.end();
}

#[test]
fn a_server_that_ends_is_left_in_time() {
    let rig = Rig::new();
    let waits = format!("{NO_NAT}\ndrain_s = 3600");
    let mut servers = [0, 1].map(|number| Some(rig.server(number, &waits, "")));
    let client = rig.client("");
    let before = client.session();
    let ending = name_of(&before);

    // It does not have to wait for `drain_s`.
    assert!(
        servers[ending]
            .take()
            .unwrap()
            .process
            .stop(TIMEOUT)
            .unwrap()
            .success()
    );
    let after = client.until("a session at the other server", |status| {
        status
            .sessions
            .iter()
            .any(|session| name_of(session) != ending)
    });
    assert_eq!(after.sessions[0].addresses, before.addresses);
    rig.route_back_by(1 - ending);
    echo(&rig.client, &rig.host, HOST6);
}

#[test]
fn a_server_that_was_killed_and_started_again_is_found_again() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    let before = client.session();
    drop(server);
    let _server = rig.server(0, "", "");
    let after = client.until("a new session", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.since_unix_ms > before.since_unix_ms)
    });
    assert_eq!(after.sessions[0].addresses, before.addresses);
    echo(&rig.client, &rig.host, HOST4);
}

#[test]
fn a_killed_client_gets_its_addresses_back() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    let before = client.session().addresses;
    drop(client);
    let client = rig.client("");
    assert_eq!(client.session().addresses, before);
    echo(&rig.client, &rig.host, HOST4);

    assert!(client.process.stop(TIMEOUT).unwrap().success());

    server.until("the session is gone", |status| status.sessions.is_empty());
}

#[test]
fn the_route_to_a_client_that_was_killed_and_came_back_stays() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    for before in 0..4 {
        let client = rig.client("");
        let address = client.session().addresses[0].to_string();
        rig.wait_until_route(&address, MTU);
        // Once the counter is in the status, the server has handled the end of the former session.
        server.wait_until_counted("connection_superseded", before);
        assert!(rig.route(&address).contains(MTU), "{}", rig.route(&address));
    }
}

#[test]
fn what_waits_when_a_session_ends_is_counted() {
    let rig = Rig::new();
    let server = rig.server(0, "nat = false", "");
    let client = rig.client("");
    let flood = Flood::start(&rig.host, client.session().addresses[0]);
    client.until("the flood arrives", |status| {
        status.sessions[0].received_bytes > 100_000
    });
    // Without acknowledgements packets wait until the next client replaces the session.
    drop(client);
    let carried = server.session().sent_bytes;
    server.until("the flood goes on", |status| {
        status.sessions[0].sent_bytes > carried + 200_000
    });
    let _client = rig.client("");
    server.wait_until_counted("session_ended", 1);
    drop(flood);
}

#[test]
fn removed_addresses_and_routes_are_restored_and_counted() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let mut restored = client.until("a status", |_| true).device_restored;
    assert_eq!(restored, 0, "only the client has changed them");
    for change in [
        "link set hawser-tun down\nlink set hawser-tun up",
        "link set hawser-tun down",
        "link set hawser-tun multicast on",
        "route flush dev hawser-tun",
        "-6 route flush dev hawser-tun",
        "addr flush dev hawser-tun",
    ] {
        let mut command = rig.client.command("sh").unwrap();
        let commands: Vec<_> = change.lines().map(|line| format!("ip {line}")).collect();
        let status = command.args(["-c", &commands.join(" && ")]).status();
        assert!(status.unwrap().success(), "{change}");
        // The kernel may remove more of it after the first restoration.
        let status = client.until(&format!("restored after {change}"), |status| {
            let mut deviations = status.deviations.iter();
            status.device_restored > restored && deviations.all(|found| found.restored)
        });
        restored = status.device_restored;
        for address in [HOST4, HOST6] {
            echo(&rig.client, &rig.host, address);
        }
    }
    assert_eq!(client.session().paths.len(), 2);
}

#[test]
fn changes_of_a_servers_device_are_restored() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    client.session();
    let mut restored = server.until("a status", |_| true).device_restored;
    assert_eq!(restored, 0, "only the server has changed it");
    for change in [
        "route flush dev hawser-tun",
        "-6 route flush dev hawser-tun",
        "route del 10.77.0.2 dev hawser-tun",
        "addr del 10.77.0.1/16 dev hawser-tun",
        "link set hawser-tun mtu 1200",
        "link set hawser-tun down",
    ] {
        let mut command = rig.servers[0].command("ip").unwrap();
        let status = command.args(change.split(' ')).status();
        assert!(status.unwrap().success(), "{change}");
        let status = server.until(&format!("restored after {change}"), |status| {
            let mut deviations = status.deviations.iter();
            status.device_restored > restored && deviations.all(|found| found.restored)
        });
        restored = status.device_restored;
        for address in [HOST4, HOST6] {
            echo(&rig.client, &rig.host, address);
        }
    }
}

#[test]
fn an_uplinks_reverse_path_filter_is_loose_meanwhile() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let set = |scope: &str, value: &str| {
        let key = format!("net.ipv4.conf.{scope}.rp_filter");
        rig.client.sysctl(&key, value).unwrap();
    };
    let filter = |uplink: &str| {
        let read = || hawser_io::sysctl::own_reverse_path_filter(uplink).unwrap();
        rig.client.run(read).unwrap()
    };
    set("all", "1");
    set("wan0", "1");
    set("wan1", "0");
    let client = rig.client("");
    assert_eq!(["wan0", "wan1"].map(filter), [2, 2]);
    set("wan1", "1");
    let is_loose = |status: &hawser_tunnel::status::Status| {
        let name = "net.ipv4.conf.wan1.rp_filter";
        let mut found = status.deviations.iter();
        found.any(|found| found.name == name && found.restored)
    };
    client.until("it is loose again", is_loose);
    for address in [HOST4, HOST6] {
        echo(&rig.client, &rig.host, address);
    }
    assert!(client.process.stop(TIMEOUT).unwrap().success());
    assert_eq!(
        ["wan0", "wan1"].map(filter),
        [1, 1],
        "as last set by another program"
    );
}

#[test]
fn the_filter_of_a_device_with_a_table_stays_loose() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("table = 100\n");
    let key = "net.ipv4.conf.hawser-tun.rp_filter";
    rig.client.sysctl(key, "1").unwrap();
    client.until("it is loose again", |status| {
        let mut found = status.deviations.iter();
        found.any(|found| found.name == key && found.restored)
    });
}

#[test]
fn filters_that_keep_clients_from_arriving_are_named() {
    let rig = Rig::new();
    let filter = "net.ipv4.conf.lan.rp_filter";
    rig.servers[0].sysctl(filter, "1").unwrap();
    let server = rig.server(0, "", "");
    let rule = "reverse path filter of the firewall";
    until_said(&server, filter, None);
    // The default route is by another interface.
    rig.host.ip("addr add 203.0.113.77/32 dev lo").unwrap();
    // ARP is answered to an address of the link only.
    for own in ["198.51.0.2", "203.0.113.77"] {
        let socket = rig.host.run(|| UdpSocket::bind((own, 0)).unwrap()).unwrap();
        socket.send_to(b"hello", ("198.51.0.1", PORT)).unwrap();
    }
    until_said(&server, filter, Some("is strict"));
    rig.servers[0].sysctl(filter, "2").unwrap();
    until_said(&server, filter, None);
    until_said(&server, rule, None);
    nft(
        &rig.servers[0],
        "table inet fw { chain pre { type filter hook prerouting priority 10 ; \
         fib saddr . iif oif missing drop ; } ; }",
    );
    until_said(&server, rule, Some("fib saddr . iif"));
}

/// Runs a change of routes or rules in the syntax of `ip`.
fn ip(namespace: &Namespace, change: &str) {
    let mut command = namespace.command("ip").unwrap();
    let status = command.args(change.split(' ')).status();
    assert!(status.unwrap().success(), "{change}");
}

const INSIDE: &str = "routes by hawser-tun";

/// Waits until a deviation says this, and nothing while there is no text.
fn until_said(end: &End, name: &str, text: Option<&str>) {
    end.until(&format!("{name}: {text:?}"), |status| {
        let mut found = status.deviations.iter();
        let found = found.find(|found| found.name == name && !found.restored);
        match (found, text) {
            (Some(found), Some(text)) => found.what.contains(text),
            (found, _) => found.is_none() && text.is_none(),
        }
    });
}

#[test]
fn routes_and_rules_that_divert_packets_are_named() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let all = "routes = [\"0.0.0.0/0\", \"::/0\"]\nbypass = [\"203.0.113.0/24\"]\n";
    let client = rig.client(all);
    client.session();
    let table = "route add default via 10.1.0.2 dev wan0 table 77";
    ip(&rig.client, table);
    for (change, text) in [
        ("route add 8.0.0.0/6 via 10.1.0.2 dev wan0", "8.0.0.0/6"),
        ("route prepend 0.0.0.0/1 via 10.1.0.2 dev wan0", "0.0.0.0/1"),
        ("rule add priority 50 lookup 77", "0.0.0.0/0"),
        ("route add prohibit 9.8.6.9/32", "dropped"),
        ("route add blackhole 2001:db8:1::/48", "dropped"),
        (
            "-6 route add 2001:db8:2::/48 via fd01:0::2 dev wan0",
            "over wan0",
        ),
    ] {
        ip(&rig.client, change);
        until_said(&client, INSIDE, Some(text));
        ip(
            &rig.client,
            &change
                .replace(" add ", " del ")
                .replace(" prepend ", " del "),
        );
        until_said(&client, INSIDE, None);
    }
    for fine in [
        "route add 203.0.113.9/32 via 10.1.0.2 dev wan0",
        "route add 203.0.0.1/32 via 10.1.0.2 dev wan0",
        "route add 10.5.0.0/16 dev wan1",
    ] {
        ip(&rig.client, fine);
    }
    ip(&rig.client, "route add prohibit 9.8.6.9/32");
    until_said(&client, INSIDE, Some("packets to 9.8.6.9/32 do not enter"));

    ip(
        &rig.servers[0],
        "route add 10.77.0.0/16 via 203.0.0.2 table 88",
    );
    ip(&rig.servers[0], "rule add priority 5270 lookup 88");
    until_said(&server, INSIDE, Some("10.77.0.0/16"));
    ip(&rig.servers[0], "rule del priority 5270 lookup 88");
    until_said(&server, INSIDE, None);
}

#[test]
fn a_table_that_no_rule_looks_up_is_named() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("table = 100\n");
    until_said(&client, INSIDE, Some("no IPv4 packets"));
    ip(&rig.client, "rule add fwmark 16 lookup 100");
    until_said(&client, INSIDE, Some("no IPv6 packets"));
    ip(&rig.client, "-6 rule add fwmark 16 lookup 100");
    until_said(&client, INSIDE, None);
}

#[test]
fn what_keeps_packets_from_passing_is_named_by_both_ends() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    rig.client.sysctl("net.ipv4.ip_forward", "0").unwrap();
    let client = rig.client("masquerade = true\n");
    let names = |status: &hawser_tunnel::status::Status, name: &str| {
        let mut found = status.deviations.iter();
        found.any(|found| found.name == name && !found.restored)
    };
    client.until("forwarding is off", |status| {
        names(status, "net.ipv4.ip_forward")
    });
    nft(
        &rig.servers[0],
        "table ip filter { chain FORWARD { type filter hook forward priority 0 ; policy drop ; } ; }",
    );
    let through = "forwarding of hawser-tun through the firewall";
    server.until("the policy drops", |status| names(status, through));
    nft(
        &rig.servers[0],
        "insert rule ip filter FORWARD iifname hawser-tun accept",
    );
    server.until("a rule accepts", |status| !names(status, through));
    rig.servers[0]
        .sysctl("net.ipv6.conf.all.forwarding", "0")
        .unwrap();
    server.until("forwarding is off", |status| {
        names(status, "net.ipv6.conf.all.forwarding")
    });
    let of_device = |value| {
        let key = "net.ipv4.conf.hawser-tun.forwarding";
        rig.servers[0].sysctl(key, value).unwrap();
    };
    of_device("0");
    server.until("forwarding of the device is off", |status| {
        names(status, "net.ipv4.ip_forward")
    });
    of_device("1");
    server.until("it is on again", |status| {
        !names(status, "net.ipv4.ip_forward")
    });
    nft(
        &rig.client,
        "table inet fw { chain pre { type filter hook prerouting priority 10 ; \
         fib saddr . iif oif missing drop ; } ; }",
    );
    client.until("a rule filters", |status| {
        names(status, "reverse path filter of the firewall on wan1")
    });
    let routes =
        "route del default via 10.1.1.2 dev wan1\nroute del default via fd01:1::2 dev wan1";
    rig.client.ip(routes).unwrap();
    client.until("an uplink has no route", |status| {
        names(status, "route over wan1")
    });
}

#[test]
fn a_firewalld_filter_that_drops_servers_is_named() {
    const NAME: &str = "reverse path filter of the firewall on ";
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    // The default of firewalld.
    nft(
        &rig.client,
        "table inet firewalld {\nchain filter_PREROUTING {\ntype filter hook prerouting priority 10;\n\
         icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept\n\
         meta nfproto ipv6 fib saddr . mark . iif oif missing drop\n}\n}",
    );
    let start = |addresses: &str, more: &str| {
        let sections = format!(
            "[[server]]\nname = \"one\"\naddresses = [{addresses}]\n[[uplink]]\ninterface = \"wan*\"\n"
        );
        rig.client_with("car", more, &sections)
    };
    let both = |status: &hawser_tunnel::status::Status| {
        let mut sessions = status.sessions.iter();
        sessions.any(|session| session.paths.len() == 2)
    };
    let named = |status: &hawser_tunnel::status::Status| {
        let found = status.deviations.iter();
        let found = found.filter(|found| found.name.starts_with(NAME));
        found.cloned().collect::<Vec<_>>()
    };
    let client = start("\"203.0.0.1:14752\"", "");
    let status = client.until("IPv4 passes", both);
    assert_eq!(named(&status), [], "only IPv6 is dropped");
    drop(client);

    let server = "\"203.0.0.1:14752\", \"[fd20:0::1]:14752\"";
    let client = start(server, "");
    let status = client.until("IPv4 is used instead", both);
    let found = named(&status);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].interface.as_deref(), Some("wan1"));
    let lost = "drops IPv6 packets from fd20::1 that arrive on wan1, because the route back leads over wan0";
    assert!(found[0].what.contains(lost), "{found:?}");
    drop(client);

    // The tunnel's own routes lead back into it.
    let client = start(server, "routes = [\"::/0\"]");
    client.until("both uplinks are concerned", |status| {
        let found = named(status);
        found.len() == 2
            && found
                .iter()
                .all(|found| found.what.contains("over hawser-tun"))
    });
}

#[test]
fn a_second_signal_ends_a_server_that_drains() {
    let rig = Rig::new();
    let mut server = rig.server(0, "drain_s = 3600", "");
    let _client = rig.client("");
    let terminate = |server: &crate::rig::End| {
        let id = server.process.id().try_into().unwrap();
        kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
    };
    terminate(&server);
    server.until("it drains", |status| status.draining);
    let start = Instant::now();
    let ended = loop {
        if let Some(ended) = server.process.ended().unwrap() {
            break ended;
        }
        assert!(start.elapsed() < TIMEOUT, "it goes on");
        // Signals within a second of the first are one.
        terminate(&server);
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(ended.code(), Some(143));
}

#[test]
fn an_end_whose_device_is_removed_exits_with_an_error() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    for (mut end, namespace) in [(client, &rig.client), (server, &rig.servers[0])] {
        namespace.ip("link delete hawser-tun").unwrap();
        let start = Instant::now();
        let ended = loop {
            if let Some(ended) = end.process.ended().unwrap() {
                break ended;
            }
            assert!(start.elapsed() < TIMEOUT, "it runs without a device");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(!ended.success());
    }
}

#[test]
fn a_client_takes_the_nearest_server() {
    let rig = Rig::new();
    let _servers = [0, 1].map(|number| rig.server(number, NO_NAT, ""));
    for (far, address, near) in [
        ("to0", [203, 0, 0, 1], "two"),
        ("to1", [203, 0, 1, 1], "one"),
    ] {
        // A queue that is always full adds delay.
        let shape = |what: &str| {
            let mut shaper = rig.router.command("tc").unwrap();
            shaper.args(format!("qdisc {what}").split(' '));
            assert!(shaper.status().unwrap().success());
        };
        shape(&format!(
            "add dev {far} root tbf rate 400kbit burst 2kb latency 200ms"
        ));
        let flood = Flood::start(&rig.router, address.into());
        assert_eq!(rig.client("").session().peer, near);
        drop(flood);
        shape(&format!("delete dev {far} root"));
    }
}

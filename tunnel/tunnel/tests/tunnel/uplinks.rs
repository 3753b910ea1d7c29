//! Uplinks that fail and come back during a connection.

use crate::rig::{End, HOST4, HOST6, PORT, Rig, TIMEOUT, UPLINKS, nft};
use crate::traffic::{Connection, Flood, echo};
use hawser_tunnel::status::{PathStatus, Status};
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

#[test]
fn each_uplink_is_cut_and_restored_under_a_connection() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    let since = client.session().since_unix_ms;
    for uplink in UPLINKS {
        connection.wait_for_progress();
        rig.router.ip(&format!("link set {uplink} down")).unwrap();
        connection.wait_for_progress();
        client.until("the other uplink alone", |status| {
            status.sessions[0].paths.len() == 1
        });
        rig.router.ip(&format!("link set {uplink} up")).unwrap();
        client.until("both uplinks", |status| status.sessions[0].paths.len() == 2);
    }
    assert_eq!(
        client.session().since_unix_ms,
        since,
        "the session is the same"
    );
    connection.end();
}

#[test]
fn an_uplink_that_flaps_leaves_the_other_alone() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    let steady = |status: &Status| {
        let remotes = status
            .sessions
            .iter()
            .flat_map(|session| &session.paths)
            .filter_map(|path| path.remote);
        remotes
            .filter(|remote| remote.ip().to_string() == "10.1.0.1")
            .map(|remote| remote.port())
            .next()
    };
    let before = steady(&server.until("the steady uplink", |status| steady(status).is_some()));
    // More often than there are path indices.
    for _ in 0..=hawser_units::MAX_PATHS {
        rig.router.ip("link set wan1 down").unwrap();
        client.until("the steady uplink alone", |status| {
            status.sessions[0].paths.len() == 1
        });
        rig.router.ip("link set wan1 up").unwrap();
        client.until("both uplinks", |status| status.sessions[0].paths.len() == 2);
    }
    // A connection whose end the server did not receive remains until its idle timeout of 30 s.
    let both = server.within(2 * TIMEOUT, "both uplinks", |status| {
        status.sessions[0].paths.len() == 2
    });
    assert_eq!(steady(&both), before);
}

#[test]
fn a_session_that_the_client_closed_is_opened_again() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("session_timeout_s = 1");
    let before = client.session();
    for uplink in UPLINKS {
        rig.router.ip(&format!("link set {uplink} down")).unwrap();
    }
    client.until("the session is over", |status| status.sessions.is_empty());
    for uplink in UPLINKS {
        rig.router.ip(&format!("link set {uplink} up")).unwrap();
    }
    let after = client.until("a new session", |status| !status.sessions.is_empty());
    assert_eq!(after.sessions[0].addresses, before.addresses);
    assert!(after.sessions[0].since_unix_ms > before.since_unix_ms);
    echo(&rig.client, &rig.host, HOST4);
}

#[test]
fn an_uplink_that_swallows_everything_is_done_without() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    for uplink in UPLINKS {
        connection.wait_for_progress();
        rig.blackhole(uplink, true);
        connection.wait_for_progress();
        rig.blackhole(uplink, false);
        client.until("both uplinks answer", |status| {
            let paths = &status.sessions[0].paths;
            paths.len() == 2 && paths.iter().all(|path| path.unacknowledged_ms < 200)
        });
    }
    connection.end();
}

#[test]
fn a_silently_narrower_hop_and_its_recovery_are_noticed() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("mtu_retry_s = 20");
    let since = client.session().since_unix_ms;
    let full = client.session().mtu_bytes;
    let _video = Flood::of_size(&rig.client, HOST4.parse().unwrap(), 1400);
    // The router drops what is larger, and says nothing.
    nft(
        &rig.router,
        "table inet silent {\nchain output {\ntype filter hook output priority 0;\n\
         meta l4proto { icmp, icmpv6 } drop\n}\n}",
    );
    for uplink in UPLINKS {
        // A device would otherwise pass on trains of packets, whatever their size.
        rig.client
            .ip(&format!("link set {uplink} gso_max_segs 1"))
            .unwrap();
        rig.router
            .ip(&format!("link set {uplink} mtu 1400"))
            .unwrap();
    }
    let narrow = |status: &Status| {
        let sizes = status.sessions.iter().map(|session| session.mtu_bytes);
        sizes.clone().count() == 1 && sizes.max() < Some(full - 60)
    };
    let status = client.until("the client sends smaller packets", narrow);
    assert_eq!(
        status.sessions[0].since_unix_ms, since,
        "the session is the same"
    );
    for uplink in UPLINKS {
        rig.router
            .ip(&format!("link set {uplink} mtu 1500"))
            .unwrap();
    }
    client.within(2 * TIMEOUT, "it sends full packets again", |status| {
        status.sessions[0].mtu_bytes == full
    });
    assert_eq!(client.session().since_unix_ms, since);
}

/// Drops packets of more bytes that arrive at the router on an interface, without an answer.
fn drop_larger(rig: &Rig, interface: &str, bytes: u16) {
    nft(
        &rig.router,
        &format!(
            "table inet narrow {{\ncounter dropped {{}}\nchain forward {{ type filter hook forward priority 0;\n\
             iifname \"{interface}\" meta l4proto udp meta length > {bytes} counter name dropped drop\n}}\n}}"
        ),
    );
}

fn dropped(rig: &Rig) -> u64 {
    let counter = nft(&rig.router, "list counter inet narrow dropped");
    let mut words = counter.split_whitespace();
    words.find(|word| *word == "packets");
    words.next().unwrap().parse().unwrap()
}

/// Waits until packets have been dropped, and no further one for a second.
fn wait_until_none_is_dropped(rig: &Rig, what: &str) {
    let start = Instant::now();
    let mut before = 0;
    while before == 0 || dropped(rig) > before {
        assert!(start.elapsed() < 2 * TIMEOUT, "dropped: {before}; {what}");
        before = dropped(rig);
        thread::sleep(Duration::from_secs(1));
    }
}

/// Starts a client with a single uplink, whose hops are to carry one packet at a time, as cables do.
fn client_with_one_uplink(rig: &Rig) -> End {
    for (end, interface) in [(&rig.client, "wan0"), (&rig.servers[0], "net")] {
        let set = format!("link set {interface} gso_max_segs 1");
        end.ip(&set).unwrap();
    }
    let server = format!("[[server]]\nname = \"one\"\naddresses = [\"203.0.0.1:{PORT}\"]\n");
    let uplink = "[[uplink]]\ninterface = \"wan0\"\n";
    rig.client_with("car", "", &format!("{server}{uplink}"))
}

/// Sizes of datagrams that are sent together, and what a hop carries that their packet does not fit.
const PAIRS: [([usize; 2], u16); 3] =
    [([1316, 100], 1358), ([1250, 120], 1358), ([600, 610], 1300)];

#[test]
fn pairs_of_datagrams_upward_fit_a_hop_that_became_narrower() {
    for (sizes, hop) in PAIRS {
        let rig = Rig::new();
        let _server = rig.server(0, "", "");
        let client = client_with_one_uplink(&rig);
        let since = client.session().since_unix_ms;
        let _pairs = Flood::of_pairs(&rig.client, HOST4.parse().unwrap(), sizes);
        drop_larger(&rig, "wan0", hop);
        wait_until_none_is_dropped(&rig, &format!("{sizes:?}"));
        let file = rig.path("car/sizes.json");
        client.until("the size is remembered", |_| {
            fs::read_to_string(&file).is_ok_and(|sizes| sizes.contains("\"wan0\""))
        });
        assert_eq!(client.session().since_unix_ms, since);
    }
}

#[test]
fn pairs_of_datagrams_downward_fit_a_hop_that_became_narrower() {
    for (sizes, hop) in PAIRS {
        let rig = Rig::new();
        let _server = rig.server(0, "", "");
        let client = client_with_one_uplink(&rig);
        let session = client.session();
        let _pairs = Flood::of_pairs(&rig.servers[0], session.addresses[0], sizes);
        drop_larger(&rig, "to0", hop);
        wait_until_none_is_dropped(&rig, &format!("{sizes:?}"));
        assert_eq!(client.session().since_unix_ms, session.since_unix_ms);
    }
}

#[test]
fn an_uplink_follows_the_mtu_of_its_interface() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let since = client.session().since_unix_ms;
    let full = client.session().mtu_bytes;
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    for (mtu, expected) in [(1400, full - 100), (1500, full)] {
        for end in [&rig.client, &rig.router] {
            end.ip(&format!("link set wan0 mtu {mtu}")).unwrap();
        }
        client.until("packets have another size", |status| {
            let session = &status.sessions[0];
            session.paths.len() == UPLINKS.len() && session.mtu_bytes == expected
        });
        connection.wait_for_progress();
    }
    assert_eq!(client.session().since_unix_ms, since);
    connection.end();
}

#[test]
fn the_source_address_is_one_that_reaches_the_server() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let from = "2001:db8:1";
    rig.router
        .ip(&format!(
            "addr add {from}::2/64 dev wan0 nodad\naddr add 2001:db8:20::2/64 dev to0 nodad"
        ))
        .unwrap();
    rig.servers[0]
        .ip("addr add 2001:db8:20::1/64 dev net nodad")
        .unwrap();
    // The kernel lists the address first that was added last.
    rig.client
        .ip(&format!(
            "addr del fd01:0::1/64 dev wan0\naddr add {from}::1/64 dev wan0 nodad\n\
             addr add fd01:0::1/64 dev wan0 nodad\naddr add {from}::dead/64 dev wan0 nodad preferred_lft 0"
        ))
        .unwrap();
    nft(
        &rig.router,
        &format!(
            "table ip6 provider {{\nchain forward {{\ntype filter hook forward priority 0;\n\
             ip6 daddr 2001:db8:20::1 ip6 saddr != {from}::1 drop\n}}\n}}"
        ),
    );
    let sections = format!(
        "{}[[uplink]]\ninterface = \"wan0\"\n",
        server_at("[2001:db8:20::1]")
    );
    let _client = rig.client_with("car", "", &sections);
    server.until("the path comes from the global address", |status| {
        let paths = status.sessions.iter().flat_map(|session| &session.paths);
        let mut remotes = paths.filter_map(|path| path.remote);
        remotes.any(|remote| remote.ip().to_string() == format!("{from}::1"))
    });
}

#[test]
fn an_uplink_without_a_way_for_ipv6_uses_ipv4() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    nft(
        &rig.router,
        "table ip6 dead {\nchain forward {\ntype filter hook forward priority 0;\niifname \"wan*\" drop\n}\n}",
    );
    let sections = format!(
        "[[server]]\nname = \"one\"\naddresses = [\"[fd20:0::1]:{PORT}\", \"203.0.0.1:{PORT}\"]\n\
         [[uplink]]\ninterface = \"wan*\"\n"
    );
    let client = rig.client_with("car", "", &sections);
    client.until("both uplinks over IPv4", |status| {
        let paths = status.sessions.iter().flat_map(|session| &session.paths);
        let remotes = paths.filter_map(|path| path.remote);
        remotes.filter(SocketAddr::is_ipv4).count() == 2
    });
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    connection.wait_for_progress();
    connection.end();
}

#[test]
fn an_uplink_gets_another_address() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    for (number, uplink) in UPLINKS.iter().enumerate() {
        rig.client
            .ip(&format!(
                "addr del 10.1.{number}.1/24 dev {uplink}\naddr add 10.1.{number}.77/24 dev {uplink}\n\
                 route add default via 10.1.{number}.2 dev {uplink} metric {}",
                100 + number
            ))
            .unwrap();
        let moved = format!("10.1.{number}.77");
        server.until("the path comes from the new address", |status| {
            let paths = status.sessions.iter().flat_map(|session| &session.paths);
            paths
                .filter_map(|path| path.remote)
                .any(|remote| remote.ip().to_string() == moved)
        });
        connection.wait_for_progress();
    }
    client.until("both uplinks", |status| status.sessions[0].paths.len() == 2);
    connection.end();
}

#[test]
fn an_address_translation_forgets_all_uplinks() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    rig.set_up_nat("20000-39999");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    let since = client.session().since_unix_ms;
    let remotes = |status: &Status| -> Vec<SocketAddr> {
        let paths = status.sessions.iter().flat_map(|session| &session.paths);
        paths.filter_map(|path| path.remote).collect()
    };
    let before = remotes(&server.until("both uplinks", |status| remotes(status).len() == 2));
    assert!(
        before
            .iter()
            .all(|remote| remote.to_string().starts_with("203.0.0.2:")),
        "{before:?}"
    );
    connection.wait_for_progress();

    // When a masquerading device loses its address, the kernel removes the connections that had it.
    rig.set_up_nat("40000-59999");
    rig.router
        .sysctl("net.ipv4.conf.to0.promote_secondaries", "1")
        .unwrap();
    rig.router
        .ip("addr add 203.0.0.3/24 dev to0\naddr del 203.0.0.2/24 dev to0")
        .unwrap();

    connection.wait_for_progress();
    server.until(
        "both uplinks come from another address and port",
        |status| {
            let moved = |remote: &SocketAddr| {
                remote.ip().to_string() == "203.0.0.3" && remote.port() >= 40_000
            };
            remotes(status).len() == 2 && remotes(status).iter().all(moved)
        },
    );
    assert_eq!(
        client.session().since_unix_ms,
        since,
        "the session is the same"
    );
    connection.end();
}

#[test]
fn all_uplinks_are_lost_for_a_while() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    let since = client.session().since_unix_ms;
    connection.wait_for_progress();
    for uplink in UPLINKS {
        rig.router.ip(&format!("link set {uplink} down")).unwrap();
    }
    client.until("no path is left", |status| {
        status
            .sessions
            .iter()
            .all(|session| session.paths.is_empty())
    });
    for uplink in UPLINKS {
        rig.router.ip(&format!("link set {uplink} up")).unwrap();
    }
    connection.wait_for_progress();
    connection.end();
    assert_eq!(
        client.session().since_unix_ms,
        since,
        "the session is the same"
    );
}

/// Returns a `[[server]]` entry for the first server at this address.
fn server_at(address: &str) -> String {
    format!("[[server]]\nname = \"one\"\naddresses = [\"{address}:{PORT}\"]\n")
}

#[test]
fn a_dear_uplink_waits_until_the_cheap_one_fails() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let uplinks = "[[uplink]]\ninterface = \"wan0\"\n[[uplink]]\ninterface = \"wan1\"\ncost = 1\n";
    let client = rig.client_with("car", "", &format!("{}{uplinks}", server_at("203.0.0.1")));
    for end in [&client, &server] {
        end.until("one of two paths waits", |status| {
            let paths: Vec<_> = status
                .sessions
                .iter()
                .flat_map(|session| &session.paths)
                .collect();
            paths.len() == 2 && paths.iter().filter(|path| path.standby).count() == 1
        });
    }
    let carried = |name: &str| {
        let session = client.session();
        session
            .paths
            .iter()
            .find(|path| path.name == name)
            .map_or(0, |path| path.sent_bytes)
    };
    let cheap = carried("wan0");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    connection.wait_for_progress();
    // A slow machine may use the expensive uplink for a while.
    client.until(
        "the cheap uplink carries, and the expensive one waits",
        |status| {
            let expensive = status.sessions[0]
                .paths
                .iter()
                .find(|path| path.name == "wan1");
            carried("wan0") > cheap + 200_000 && expensive.is_some_and(|path| path.standby)
        },
    );
    let expensive = carried("wan1");
    rig.router.ip("link set wan0 down").unwrap();
    connection.wait_for_progress();
    client.until("the expensive uplink carries", |_| {
        carried("wan1") > expensive
    });
    connection.end();
}

#[test]
fn a_dear_uplink_helps_with_what_comes_from_the_server() {
    let rig = Rig::new();
    let _server = rig.server(0, "nat = false", "");
    let uplinks = "[[uplink]]\ninterface = \"wan0\"\n[[uplink]]\ninterface = \"wan1\"\ncost = 1\n";
    let client = rig.client_with("car", "", &format!("{}{uplinks}", server_at("203.0.0.1")));
    let is_expensive_one_waiting = |status: &Status| {
        let paths: Vec<_> = status
            .sessions
            .iter()
            .flat_map(|session| &session.paths)
            .collect();
        paths.len() == 2 && paths.iter().any(|path| path.name == "wan1" && path.standby)
    };
    client.until("the expensive uplink waits", is_expensive_one_waiting);
    // Limits the rate towards the client to 1 Mb/s, of 4 Mb/s that are sent.
    Rig::limit(&rig.router, "wan0", "1mbit", "60ms");
    let flood = Flood::start(&rig.host, client.session().addresses[0]);
    client.until("the expensive uplink helps", |status| {
        let paths: Vec<_> = status
            .sessions
            .iter()
            .flat_map(|session| &session.paths)
            .collect();
        paths
            .iter()
            .any(|path| path.name == "wan1" && !path.standby && path.received_bytes > 100_000)
    });
    drop(flood);
    client.until("it waits again", is_expensive_one_waiting);
}

#[test]
fn an_uplink_whose_cap_is_used_up_is_left() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let uplinks = "[[uplink]]\ninterface = \"wan0\"\nmonthly_cap_mb = 1\n[[uplink]]\ninterface = \"wan1\"\ncost = 1\n";
    let client = rig.client_with("car", "", &format!("{}{uplinks}", server_at("203.0.0.1")));
    client.until("both uplinks", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.paths.len() == 2)
    });
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    client.until("the cap is used up", |status| {
        let capped = status.uplinks.iter().find(|uplink| uplink.name == "wan0");
        capped.is_some_and(|uplink| {
            uplink.state.contains("cap") && uplink.month_bytes > Some(1_000_000)
        }) && status
            .sessions
            .iter()
            .all(|session| session.paths.len() == 1)
    });
    connection.wait_for_progress();
    connection.end();

    // The usage survives a restart.
    drop(client);
    let client = rig.client_with("car", "", &format!("{}{uplinks}", server_at("203.0.0.1")));
    client.until("the capped uplink is not used", |status| {
        status
            .uplinks
            .iter()
            .any(|uplink| uplink.state.contains("cap"))
            && status
                .sessions
                .iter()
                .any(|session| session.paths.len() == 1)
    });
}

#[test]
fn a_client_starts_with_an_empty_usage_file() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let month = OffsetDateTime::now_utc();
    let month = format!("{}-{:02}", month.year(), u8::from(month.month()));
    fs::create_dir(rig.path("car")).unwrap();
    fs::write(rig.path("car/usage.json"), "").unwrap();
    let copy = format!("{{\"months\":{{\"{month}\":{{\"wan0\":2000000}}}}}}");
    fs::write(rig.path("car/usage.json.copy"), copy).unwrap();
    let uplinks =
        "[[uplink]]\ninterface = \"wan0\"\nmonthly_cap_mb = 1\n[[uplink]]\ninterface = \"wan1\"\n";
    let client = rig.client_with("car", "", &format!("{}{uplinks}", server_at("203.0.0.1")));
    let status = client.until("a session over the other uplink", |status| {
        let sessions = status.sessions.iter();
        sessions.flat_map(|session| &session.paths).count() == 1
    });
    assert!(status.uplinks[0].state.contains("cap"), "{status:?}");
    assert_eq!(status.damaged_files.len(), 1);
    assert!(rig.path("car/usage.json.damaged").exists());
}

#[test]
fn routes_of_uplinks_to_the_same_destinations_stay() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    // Without a metric, as on most hosts.
    let defaults =
        "route replace default via 10.1.0.2 dev wan0\nroute replace default via fd01:0::2 dev wan0";
    rig.client.ip(defaults).unwrap();
    let by = |address: &str| interface_to(&rig, address);
    assert_eq!(
        (by("192.0.2.1"), by("2001:db8::1")),
        ("wan0".to_owned(), "wan0".to_owned())
    );
    let tls = rig.authority.credentials(rig.folder.path(), "car");
    let config = format!(
        "[tunnel]\nname = \"car\"\nroutes = [\"0.0.0.0/0\", \"::/0\"]\nstate = \"{}\"\n{tls}{}[[uplink]]\ninterface = \"wan*\"\n",
        rig.folder.path().display(),
        server_at("203.0.0.1")
    );
    let client = rig.start(&rig.client, "car", "client", &config);
    client.until("both uplinks", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.paths.len() == 2)
    });
    assert_eq!(
        (by("192.0.2.1"), by("2001:db8::1")),
        ("hawser-tun".to_owned(), "hawser-tun".to_owned())
    );
    for address in [HOST4, HOST6] {
        echo(&rig.client, &rig.host, address);
    }
    drop(client);
    assert_eq!(
        (by("192.0.2.1"), by("2001:db8::1")),
        ("wan0".to_owned(), "wan0".to_owned())
    );
}

/// Returns the interface by which the client's packets to an address leave.
fn interface_to(rig: &Rig, address: &str) -> String {
    let route = || hawser_io::interface::route(address.parse().unwrap(), None).unwrap();
    rig.client.run(route).unwrap().interface
}

#[test]
fn default_routes_change_while_everything_is_routed_inside() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let config = format!(
        "[tunnel]\nname = \"car\"\nroutes = [\"0.0.0.0/0\", \"::/0\"]\nstate = \"{}\"\n{}{}[[uplink]]\ninterface = \"wan*\"\n",
        rig.folder.path().display(),
        rig.authority.credentials(rig.folder.path(), "car"),
        server_at("203.0.0.1")
    );
    let client = rig.start(&rig.client, "car", "client", &config);
    let connected = |status: &Status| {
        let mut sessions = status.sessions.iter();
        sessions.any(|session| session.paths.len() == UPLINKS.len())
    };
    client.until("both uplinks", connected);
    // As a DHCP client does, which sets no metric.
    for change in [
        "route add default via 10.1.0.2 dev wan0",
        "route replace default via 10.1.1.2 dev wan1",
        "route add default via fd01:0::2 dev wan0 metric 1",
        "route replace default via fd01:1::2 dev wan1 metric 1",
    ] {
        rig.client.ip(change).unwrap();
        for address in ["192.0.2.1", "203.0.113.1", "2001:db8::1", "fd80::1"] {
            assert_eq!(interface_to(&rig, address), "hawser-tun", "{change}");
        }
    }
    for address in [HOST4, HOST6] {
        echo(&rig.client, &rig.host, address);
    }
    assert_eq!(client.until("a status", connected).device_restored, 0);
    drop(client);
    for address in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(interface_to(&rig, address), "wan1");
    }
}

#[test]
fn an_uplink_with_a_narrow_network_uses_smaller_packets() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let rule = "iifname \"wan0\" meta l4proto udp meta length > 1400 drop";
    let chain = format!("chain forward {{ type filter hook forward priority 0;\n{rule}\n}}");
    nft(&rig.router, &format!("table inet narrow {{\n{chain}\n}}"));
    // The rule would otherwise see trains of packets as large ones.
    rig.client.ip("link set wan0 gso_max_segs 1").unwrap();
    let client = rig.start_client("car", "mtu_retry_s = 20");
    let status = client.until("both uplinks carry packets", |status| {
        let mut sessions = status.sessions.iter();
        sessions.any(|session| session.paths.len() == UPLINKS.len())
    });
    let (since, narrow) = (
        status.sessions[0].since_unix_ms,
        status.sessions[0].mtu_bytes,
    );
    assert!((1300..1360).contains(&narrow), "{narrow}");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    nft(&rig.router, "delete table inet narrow");
    client.within(2 * TIMEOUT, "it carries full packets", |status| {
        let session = &status.sessions[0];
        session.paths.len() == UPLINKS.len() && session.mtu_bytes > narrow + 60
    });
    assert_eq!(client.session().since_unix_ms, since);
    connection.end();
}

#[test]
fn what_a_network_carried_is_known_after_a_restart() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let narrow = |bytes: u16| {
        nft(
            &rig.router,
            &format!(
                "table inet narrow\ndelete table inet narrow\ntable inet narrow {{\ncounter dropped {{}}\n\
                 chain forward {{ type filter hook forward priority 0;\n\
                 iifname \"wan0\" meta l4proto udp meta length > {bytes} counter name dropped drop\n}}\n}}"
            ),
        )
    };
    // The rule would otherwise see trains of packets as large ones.
    rig.client.ip("link set wan0 gso_max_segs 1").unwrap();
    let file = rig.path("car/sizes.json");
    let start = || {
        let client = rig.start_client("car", "");
        client.until("both uplinks", |status| {
            let mut sessions = status.sessions.iter();
            sessions.any(|session| session.paths.len() == UPLINKS.len())
        });
        client
    };
    let carried = || -> Option<u64> {
        let all: serde_json::Value = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
        let mut all = all.as_array()?.iter();
        all.find(|carried| carried["interface"] == "wan0")?["mtu_bytes"].as_u64()
    };
    let until_known = |client: &End, limit: u64| {
        client.until(
            &format!("it is known that {limit} bytes are carried"),
            |_| carried().is_some_and(|mtu| mtu <= limit),
        )
    };
    narrow(1400);
    until_known(&start(), 1400);

    narrow(1400);
    let client = start();
    let dropped = nft(&rig.router, "list counter inet narrow dropped");
    assert!(dropped.contains("packets 0 "), "{dropped}");
    drop(client);

    narrow(1360);
    until_known(&start(), 1360);

    fs::write(&file, "{").unwrap();
    let status = until_known(&start(), 1360);
    assert!(
        status.damaged_files[0].contains("sizes.json"),
        "{:?}",
        status.damaged_files
    );
}

#[test]
fn ipv6_inside_returns_when_all_uplinks_have_room() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    for end in [&rig.client, &rig.router] {
        end.ip("link set wan1 mtu 1280").unwrap();
    }
    let client = rig.client("");
    let own = client
        .session()
        .addresses
        .into_iter()
        .find(IpAddr::is_ipv6)
        .unwrap();
    let has_own = || {
        rig.client
            .run(|| UdpSocket::bind((own, 0)).is_ok())
            .unwrap()
    };
    client.until("the narrow uplink counts", |status| {
        status.sessions[0].mtu_bytes < 1280 && !has_own()
    });
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    connection.wait_for_progress();
    rig.router.ip("link set wan1 down").unwrap();
    client.until("the wide uplink alone", |status| {
        status.sessions[0].mtu_bytes > 1280 && has_own()
    });
    connection.end();
}

#[test]
fn the_outside_may_be_ipv6() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let uplinks = "[[uplink]]\ninterface = \"wan*\"\n";
    let client = rig.client_with("car", "", &format!("{}{uplinks}", server_at("[fd20:0::1]")));
    let session = client.session();
    assert!(
        session
            .paths
            .iter()
            .all(|path| path.remote.is_some_and(|remote| remote.is_ipv6()))
    );
    for address in [HOST4, HOST6] {
        echo(&rig.client, &rig.host, address);
    }
}

#[test]
fn what_the_network_marks_is_shown() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let is_marked = |path: &PathStatus| path.congestion_marks > 0;
    assert!(!client.session().paths.iter().any(is_marked));
    let mark = "chain forward { type filter hook forward priority 0; iifname wan1 ip ecn ect0 ip ecn set ce; }";
    nft(&rig.router, &format!("table inet marking {{\n{mark}\n}}"));
    let status = client.until("the uplink is marked", |status| {
        status.sessions[0].paths.iter().any(is_marked)
    });
    let marked: Vec<_> = status.sessions[0]
        .paths
        .iter()
        .filter(|path| is_marked(path))
        .collect();
    assert!(
        matches!(marked[..], [path] if path.name == "wan1"),
        "{marked:?}"
    );
}

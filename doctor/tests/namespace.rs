//! The doctor in a network namespace with veth devices.

use hawser_doctor::{Args, Finding, Part, Verdict, examine};
use hawser_testbed::netns::Namespace;
use std::net::TcpListener;

/// A namespace with a veth device `wan0`, whose other end `lan0` is in the same namespace.
struct Machine(Namespace);

impl Machine {
    fn create(name: &str) -> Self {
        let name = format!("hawser-doctor-{name}-{}", std::process::id());
        let namespace = Namespace::create(name).unwrap();
        namespace
            .ip(
                "link add wan0 type veth peer name lan0\naddr add 192.0.2.1/24 dev wan0\n\
                 link set wan0 up\nlink set lan0 up\nlink set lan0 mtu 1200",
            )
            .unwrap();
        Machine(namespace)
    }

    fn examine(&self, args: &Args) -> Vec<Finding> {
        self.0.run(|| examine(args).unwrap()).unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.0.delete().unwrap();
    }
}

fn args() -> Args {
    Args {
        parts: Vec::new(),
        interface: Vec::new(),
        config: None,
        peer: None,
        json: false,
    }
}

fn find<'a>(findings: &'a [Finding], id: &str, subject: &str) -> &'a Finding {
    let mut found = findings.iter();
    found
        .find(|found| found.id == id && found.subject.as_deref() == Some(subject))
        .unwrap_or_else(|| panic!("no {id} of {subject}: {findings:#?}"))
}

#[test]
fn interfaces_are_described_as_the_kernel_has_them() {
    let machine = Machine::create("interfaces");
    machine.0.offloads("lan0", &[("gro", false)]).unwrap();
    machine
        .0
        .sysctl("net.ipv4.conf.wan0.rp_filter", "1")
        .unwrap();
    let findings = machine.examine(&Args {
        interface: vec!["wan0".to_owned(), "wan9".to_owned()],
        parts: vec![Part::Agent],
        ..args()
    });
    let state = find(&findings, "interface.state", "wan0");
    assert!(
        state.finding.contains("of the kind veth and has a carrier"),
        "{state:?}"
    );
    assert_eq!(
        find(&findings, "interface.state", "wan9").result,
        Verdict::Failed
    );
    let xdp = find(&findings, "interface.xdp", "wan0");
    assert_eq!(xdp.result, Verdict::Warning, "{xdp:?}");
    let filter = find(&findings, "interface.reverse-path-filter", "wan0");
    let expected = match hawser_io::sysctl::is_read_only() {
        Ok(false) => Verdict::Ok,
        _ => Verdict::Failed,
    };
    assert_eq!(filter.result, expected, "{filter:?}");

    machine.0.offloads("lan0", &[("gro", true)]).unwrap();
    let findings = machine.examine(&args());
    let xdp = find(&findings, "interface.xdp", "wan0");
    assert_eq!(xdp.result, Verdict::Ok, "{xdp:?}");
    let mtu = find(&findings, "interface.mtu", "lan0");
    assert_eq!(mtu.result, Verdict::Warning, "{mtu:?}");
}

#[test]
fn a_port_in_use_and_a_peer_without_a_route_fail() {
    let machine = Machine::create("ports");
    let taken = || TcpListener::bind("127.0.0.1:14750").unwrap();
    let _taken = machine.0.run(taken).unwrap();
    let findings = machine.examine(&Args {
        parts: vec![Part::Controller],
        peer: Some("198.51.100.1:14748".to_owned()),
        ..args()
    });
    let port = find(&findings, "port.free", "tcp/14750");
    assert_eq!(port.result, Verdict::Failed, "{port:?}");
    let id = std::process::id().to_string();
    assert!(port.finding.contains(&id), "{port:?}");
    let route = find(&findings, "peer.route", "198.51.100.1");
    assert_eq!(route.result, Verdict::Failed, "{route:?}");
}

#[test]
fn what_keeps_a_tunnel_from_passing_packets_is_found() {
    let machine = Machine::create("tunnel");
    let namespace = &machine.0;
    namespace.sysctl("net.ipv4.ip_forward", "0").unwrap();
    namespace
        .ip("addr add 192.0.2.7/24 dev lan0\nlink add down0 type veth peer name down1")
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("client.toml");
    let config = "[tunnel]\nname = \"car\"\nroutes = [\"0.0.0.0/0\"]\nmasquerade = true\n\
                  [[server]]\naddresses = [\"203.0.113.1:14752\"]\n[[uplink]]\ninterface = \"wan0\"\n\
                  [[uplink]]\ninterface = \"lan0\"\n[[uplink]]\ninterface = \"down0\"\n";
    std::fs::write(&file, config).unwrap();
    let tunnel = || {
        machine.examine(&Args {
            parts: vec![Part::Tunnel],
            config: Some(file.clone()),
            ..args()
        })
    };
    let of = |findings: &[Finding], id: &str| {
        let found = findings.iter().filter(|found| found.id == id);
        found.map(|found| found.result).collect::<Vec<_>>()
    };
    let findings = tunnel();
    assert_eq!(of(&findings, "firewall.rules"), [Verdict::Ok]);
    assert_eq!(of(&findings, "firewall.forwarding"), [Verdict::Ok]);
    for (id, subject, result) in [
        ("uplink.state", "wan0", Verdict::Ok),
        ("uplink.state", "down0", Verdict::Failed),
        ("uplink.route", "wan0", Verdict::Failed),
        ("uplink.arp", "wan0", Verdict::Warning),
        ("tunnel.forwarding", "net.ipv4.ip_forward", Verdict::Failed),
    ] {
        let found = find(&findings, id, subject);
        assert_eq!(found.result, result, "{found:?}");
    }
    namespace
        .ip("route add default via 192.0.2.9 dev wan0")
        .unwrap();
    let route = tunnel();
    assert_eq!(
        find(&route, "uplink.route", "wan0").result,
        Verdict::Ok,
        "{route:?}"
    );
    let config = config.replace("0.0.0.0/0", "10.0.0.0/8");
    for (dns, result) in [("192.0.2.77", Verdict::Warning), ("10.0.0.1", Verdict::Ok)] {
        let set = config.replacen("[tunnel]", &format!("[tunnel]\ndns = [\"{dns}\"]"), 1);
        std::fs::write(&file, set).unwrap();
        let names = tunnel();
        let found = find(&names, "tunnel.names", dns);
        assert_eq!(found.result, result, "{found:?}");
    }
    assert_eq!(of(&tunnel(), "tunnel.routes"), [Verdict::Ok]);
    namespace
        .ip(
            "link add hawser-tun type veth peer name tun1\nlink set tun1 up\nlink set hawser-tun up\n\
             addr add 10.77.0.2/32 dev hawser-tun\nroute add 10.0.0.0/8 dev hawser-tun",
        )
        .unwrap();
    assert_eq!(of(&tunnel(), "tunnel.routes"), [Verdict::Ok]);
    namespace
        .ip("route add 10.9.0.0/16 via 192.0.2.9 dev wan0")
        .unwrap();
    assert_eq!(of(&tunnel(), "tunnel.routes"), [Verdict::Warning]);
    // Servers that a controller names have any address.
    let config = config.replace("203.0.113.1:14752", "");
    std::fs::write(&file, config).unwrap();
    for (rules, id) in [
        (
            "add table ip6 n { chain rp { type filter hook prerouting priority -140 ; policy drop ; \
             fib saddr . mark . iif oif exists accept ; } ; }",
            "firewall.rules",
        ),
        (
            "add table inet f { chain forward { type filter hook forward priority 0 ; \
             ct state established accept ; reject ; } ; }",
            "firewall.forwarding",
        ),
    ] {
        let mut nft = namespace.command("nft").unwrap();
        assert!(nft.arg(rules).status().unwrap().success(), "{rules}");
        assert_ne!(of(&tunnel(), id), [Verdict::Ok], "{rules}");
    }
}

#[test]
fn a_peer_on_the_link_has_a_route_and_an_mtu() {
    let machine = Machine::create("peer");
    machine.0.ip("link set wan0 mtu 1300").unwrap();
    let findings = machine.examine(&Args {
        peer: Some("192.0.2.1:9".to_owned()),
        ..args()
    });
    for (id, subject) in [
        ("peer.route", "192.0.2.1"),
        ("peer.mtu", "192.0.2.1"),
        ("peer.answer", "192.0.2.1:9"),
    ] {
        let found = find(&findings, id, subject);
        assert_eq!(found.result, Verdict::Ok, "{found:?}");
    }
}

/// The environment variable that makes the test below do the part of the process without privileges.
const WITHOUT_PRIVILEGES: &str = "HAWSER_DOCTOR_WITHOUT_PRIVILEGES";

#[test]
fn without_privileges_only_what_needs_them_fails() {
    if std::env::var_os(WITHOUT_PRIVILEGES).is_some() {
        let findings = examine(&Args {
            parts: vec![Part::Agent, Part::Tunnel],
            ..args()
        });
        println!("{:#?}", findings.unwrap());
        let xdp = hawser_io::interface::index("wan0").map(hawser_io::netlink::xdp_features);
        assert!(xdp.unwrap().unwrap().native);
        let findings = examine(&args()).unwrap();
        let failed = findings.iter();
        let failed = failed.filter(|found| found.result == Verdict::Failed);
        assert_eq!(failed.count(), 0, "{findings:#?}");
        return;
    }
    let machine = Machine::create("unprivileged");
    let mut again = machine.0.command("setpriv").unwrap();
    again
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["--bounding-set", "-all"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "without_privileges_only_what_needs_them_fails"])
        .arg("--nocapture")
        .env(WITHOUT_PRIVILEGES, "yes");
    let output = again.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let missing = "This process lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON.";
    assert!(printed.contains(missing), "{printed}");
}

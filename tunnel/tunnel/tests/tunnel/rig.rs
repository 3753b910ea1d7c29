//! Network namespaces: `client` with two uplinks to `router`, from there to the servers `one` and
//! `two`, and `host` behind both of them. The servers have the same inner prefixes.

use crate::certificates::Authority;
use crate::process;
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_tunnel::status::{SessionStatus, Status};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time limit of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(45);

/// The time limit for traffic to go on after a fault: less than the idle timeout of a connection, 30 s.
pub(crate) const GOES_ON: Duration = Duration::from_secs(20);

/// The host's addresses, and the port of the servers.
pub(crate) const HOST4: &str = "198.51.100.9";
pub(crate) const HOST6: &str = "fd51::9";
pub(crate) const PORT: u16 = 14752;

pub(crate) const UPLINKS: [&str; 2] = ["wan0", "wan1"];

pub(crate) struct Rig {
    pub(crate) client: Namespace,
    pub(crate) router: Namespace,
    pub(crate) servers: [Namespace; 2],
    pub(crate) host: Namespace,
    pub(crate) folder: TempDir,
    pub(crate) authority: Authority,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let named = |name: &str| {
            let name = format!("hawser-tt{}-{number}-{name}", std::process::id());
            let namespace = Namespace::create(name).unwrap();
            // Neighbours are resolved at once, and not after a second.
            for which in ["all", "default"] {
                let key = format!("net.ipv6.conf.{which}.accept_dad");
                namespace.sysctl(&key, "0").unwrap();
            }
            namespace
        };
        let rig = Rig {
            client: named("client"),
            router: named("router"),
            servers: [named("one"), named("two")],
            host: named("host"),
            folder: tempfile::tempdir().unwrap(),
            authority: Authority::new(),
        };
        rig.cable();
        rig
    }

    /// Connects the namespaces. One run of `ip` for each makes its links, and one sets its addresses and routes.
    fn cable(&self) {
        let mut cables = Cables::default();
        for (uplink, name) in UPLINKS.iter().enumerate() {
            let (ipv4, ipv6) = (format!("10.1.{uplink}"), format!("fd01:{uplink}"));
            cables.wire((&self.client, name), (&self.router, name), &ipv4, &ipv6);
            let routes = format!(
                "route add default via {ipv4}.2 dev {name} metric {m}\n\
                 route add default via {ipv6}::2 dev {name} metric {m}\n",
                m = 100 + uplink
            );
            cables.at(&self.client, &routes);
        }
        for (number, server) in self.servers.iter().enumerate() {
            let to = format!("to{number}");
            let (ipv4, ipv6) = (format!("203.0.{number}"), format!("fd20:{number}"));
            cables.wire((server, "net"), (&self.router, &to), &ipv4, &ipv6);
            let (lan4, lan6) = (format!("198.51.{number}"), format!("fd51:{number}"));
            cables.wire((server, "lan"), (&self.host, &to), &lan4, &lan6);
            let routes = format!(
                "route add default via {ipv4}.2\nroute add default via {ipv6}::2\n\
                 route add {HOST4} via {lan4}.2 dev lan\nroute add {HOST6} via {lan6}::2 dev lan\n"
            );
            cables.at(server, &routes);
            forwards(server);
        }
        forwards(&self.router);
        let addresses = format!("addr add {HOST4}/32 dev lo\naddr add {HOST6}/128 dev lo nodad\n");
        cables.at(&self.host, &addresses);
        cables.lay();
        self.route_back_by(0);
    }

    /// Sets the server to which the host sends packets for inner addresses, as a routing protocol
    /// would.
    pub(crate) fn route_back_by(&self, server: usize) {
        self.host
            .ip(&format!(
                "route replace 10.77.0.0/16 via 198.51.{server}.1\nroute replace fd77::/64 via fd51:{server}::1"
            ))
            .unwrap();
    }

    /// Limits what leaves a device to `rate`, in the words of `tc`, by a queue of `latency`.
    pub(crate) fn limit(from: &Namespace, device: &str, rate: &str, latency: &str) {
        let queue =
            format!("qdisc add dev {device} root tbf rate {rate} burst 5kb latency {latency}");
        let mut shaper = from.command("tc").unwrap();
        shaper.args(queue.split(' '));
        assert!(shaper.status().unwrap().success(), "{queue}");
    }

    /// Returns the first server's routes to an address.
    pub(crate) fn route(&self, address: &str) -> String {
        let mut command = self.servers[0].command("ip").unwrap();
        let output = command
            .args(["route", "show", address, "dev", "hawser-tun"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until the first server's routes to an address contain `text`.
    pub(crate) fn wait_until_route(&self, address: &str, text: &str) {
        let start = Instant::now();
        while !self.route(address).contains(text) {
            assert!(
                start.elapsed() < TIMEOUT,
                "not {text}: {}",
                self.route(address)
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a server with additional lines in `[tunnel]` and additional sections; waits until it
    /// serves.
    pub(crate) fn server(&self, number: usize, more: &str, sections: &str) -> End {
        let name = ["one", "two"][number];
        let tls = self.authority.credentials(self.folder.path(), name);
        self.server_with(number, more, &format!("{tls}{sections}"))
    }

    pub(crate) fn server_with(&self, number: usize, more: &str, sections: &str) -> End {
        self.start_server(number, "server", more, sections)
    }

    /// Starts the first server with this limit of open files and additional lines in `[tunnel]`; waits
    /// until it serves.
    pub(crate) fn server_with_files(&self, limit: u32, more: &str) -> End {
        let tls = self.authority.credentials(self.folder.path(), "one");
        let config = self.server_config(0, more, &tls);
        let start =
            |file: &_| process::start_with_files(&self.servers[0], "tunnel server", file, limit);
        let end = self.start_by("one", &config, start);
        end.until("the server serves", |_| true);
        end
    }

    fn start_server(&self, number: usize, role: &str, more: &str, sections: &str) -> End {
        let name = ["one", "two"][number];
        let config = self.server_config(number, more, sections);
        let end = self.start(&self.servers[number], name, role, &config);
        end.until("the server serves", |_| true);
        end
    }

    /// Returns the file of a server.
    fn server_config(&self, number: usize, more: &str, sections: &str) -> String {
        let name = ["one", "two"][number];
        // The host's IPv6 address is a private one.
        let allowed = if more.contains("allowed_destinations =") {
            String::new()
        } else {
            format!("allowed_destinations = [\"{HOST6}/128\"]")
        };
        let addresses = match more.contains("addresses =") {
            true => "",
            false => "addresses = [\"10.77.0.0/16\", \"fd77::/64\"]\n",
        };
        format!(
            "[tunnel]\nname = \"{name}\"\n{addresses}state = \"{}\"\n{allowed}\n\
             {more}\n{sections}",
            self.folder.path().display()
        )
    }

    /// Starts a client with additional lines in `[tunnel]`; waits until its uplinks are connected.
    pub(crate) fn client(&self, more: &str) -> End {
        let end = self.start_client("car", more);
        end.until("both uplinks are connected", |status| {
            status
                .sessions
                .iter()
                .any(|session| session.paths.len() == UPLINKS.len())
        });
        end
    }

    /// Makes a network of both families behind the client, which forwards its packets; the caller
    /// deletes it.
    pub(crate) fn network_behind_the_client(&self) -> Namespace {
        let behind = Namespace::create(format!("{}-behind", self.client.name())).unwrap();
        self.client
            .ip(&format!(
                "link add lan type veth peer name lan netns {}\naddr add 10.9.0.1/24 dev lan\n\
                 addr add fd09::1/64 dev lan nodad\nlink set lan up",
                behind.name()
            ))
            .unwrap();
        behind
            .ip(
                "addr add 10.9.0.2/24 dev lan\naddr add fd09::2/64 dev lan nodad\nlink set lan up\n\
                 route add default via 10.9.0.1\nroute add default via fd09::1",
            )
            .unwrap();
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            self.client.sysctl(key, "1").unwrap();
        }
        behind
    }

    /// Starts a client without waiting for a session.
    pub(crate) fn start_client(&self, name: &str, more: &str) -> End {
        self.client_with(name, more, &servers_and_uplinks())
    }

    /// As [`Self::start_client`], by a function that gets the client's file.
    pub(crate) fn start_client_by(
        &self,
        name: &str,
        more: &str,
        start: impl FnOnce(&Path) -> Process,
    ) -> End {
        let config = self.client_config(name, more, &servers_and_uplinks());
        self.start_by(name, &config, start)
    }

    /// Starts a client with these servers and uplinks.
    pub(crate) fn client_with(&self, name: &str, more: &str, sections: &str) -> End {
        let config = self.client_config(name, more, sections);
        self.start(&self.client, name, "client", &config)
    }

    /// Returns the file of a client.
    fn client_config(&self, name: &str, more: &str, sections: &str) -> String {
        let tls = self.authority.credentials(self.folder.path(), name);
        let routes = match more.contains("routes =") {
            true => String::new(),
            false => format!("routes = [\"{HOST4}/32\", \"{HOST6}/128\"]\n"),
        };
        format!(
            "[tunnel]\nname = \"{name}\"\n{routes}state = \"{}\"\n{more}\n{tls}{sections}",
            self.folder.path().display()
        )
    }

    pub(crate) fn start(&self, namespace: &Namespace, name: &str, role: &str, config: &str) -> End {
        self.start_by(name, config, |file| {
            process::start(namespace, &format!("tunnel {role}"), file)
        })
    }

    /// Starts an end by a function that gets its file.
    fn start_by(&self, name: &str, config: &str, start: impl FnOnce(&Path) -> Process) -> End {
        let file = self.path(&format!("{name}.toml"));
        fs::write(&file, config).unwrap();
        let status = self.path(name).join("status.json");
        // A file of an earlier process would be mistaken for this one's.
        let _ = fs::remove_file(&status);
        End {
            process: start(&file),
            status,
        }
    }

    /// Translates the client's source to the router's address towards the first server, with these
    /// ports.
    pub(crate) fn set_up_nat(&self, ports: &str) {
        nft(
            &self.router,
            &format!(
                "table ip carrier\ndelete table ip carrier\ntable ip carrier {{\nchain leaves {{\n\
                 type nat hook postrouting priority srcnat;\noifname to0 meta l4proto udp masquerade to :{ports}\n}}\n}}"
            ),
        );
    }

    /// Drops all packets of an uplink at the router, without a sign of it at the client.
    pub(crate) fn blackhole(&self, uplink: &str, blackhole: bool) {
        let rules = match blackhole {
            true => format!(
                "table inet cut {{\nchain forward {{\ntype filter hook forward priority 0;\niifname \"{uplink}\" drop\n\
                 oifname \"{uplink}\" drop\n}}\n\
                 chain input {{\ntype filter hook input priority 0;\niifname \"{uplink}\" drop\n}}\n}}"
            ),
            false => "delete table inet cut".to_owned(),
        };
        nft(&self.router, &rules);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.router, &self.host]
            .into_iter()
            .chain(&self.servers)
        {
            // A failed test has already reported why; this must not hide it.
            let _ = namespace.kill_processes();
            let _ = namespace.delete();
        }
    }
}

/// The commands that connect namespaces: first the links, then addresses and routes.
#[derive(Default)]
struct Cables<'a> {
    links: Vec<(&'a Namespace, String)>,
    addresses: Vec<(&'a Namespace, String)>,
}

impl<'a> Cables<'a> {
    /// Connects two devices; the first has the address `.1`, the other one `.2`.
    fn wire(
        &mut self,
        (one, device): (&'a Namespace, &str),
        (other, peer): (&'a Namespace, &str),
        ipv4: &str,
        ipv6: &str,
    ) {
        let there = other.name();
        let link = format!("link add {device} type veth peer name {peer} netns {there}\n");
        add(&mut self.links, one, &link);
        for (end, device, own) in [(one, device, 1), (other, peer, 2)] {
            let addresses = format!(
                "addr add {ipv4}.{own}/24 dev {device}\naddr add {ipv6}::{own}/64 dev {device} nodad\n\
                 link set {device} up\n"
            );
            self.at(end, &addresses);
        }
    }

    fn at(&mut self, namespace: &'a Namespace, commands: &str) {
        add(&mut self.addresses, namespace, commands);
    }

    fn lay(&self) {
        for (namespace, commands) in self.links.iter().chain(&self.addresses) {
            namespace.ip(commands).unwrap();
        }
    }
}

/// Adds commands to those of a namespace.
fn add<'a>(all: &mut Vec<(&'a Namespace, String)>, namespace: &'a Namespace, commands: &str) {
    match all.iter_mut().find(|(other, _)| *other == namespace) {
        Some((_, text)) => text.push_str(commands),
        None => all.push((namespace, commands.to_owned())),
    }
}

/// A process that is one end of tunnels.
pub(crate) struct End {
    pub(crate) process: Process,
    status: PathBuf,
}

impl End {
    /// Waits for a status that fulfils `wanted`.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        self.within(TIMEOUT, what, wanted)
    }

    pub(crate) fn within(
        &self,
        time_limit: Duration,
        what: &str,
        wanted: impl Fn(&Status) -> bool,
    ) -> Status {
        let start = Instant::now();
        loop {
            let status = Status::read(&self.status);
            match &status {
                Ok(status) if wanted(status) => return status.clone(),
                _ if start.elapsed() > time_limit => {
                    panic!("not within {time_limit:?}: {what}; {status:#?}")
                }
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    pub(crate) fn session(&self) -> SessionStatus {
        self.until("there is a session", |status| !status.sessions.is_empty())
            .sessions
            .remove(0)
    }

    /// Waits until a reason was counted at least `min` times, in the session or outside it.
    pub(crate) fn wait_until_counted(&self, reason: &str, min: u64) {
        self.until(reason, |status| {
            let counters = status.sessions.iter().map(|session| &session.dropped);
            let counters = counters.chain([&status.dropped]);
            counters
                .filter_map(|counters| counters.get(reason))
                .sum::<u64>()
                >= min
        });
    }
}

pub(crate) fn nft(namespace: &Namespace, rules: &str) -> String {
    let mut command: Command = namespace.command("nft").unwrap();
    let output = command.arg(rules).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the sections of a client that uses both servers over all uplinks.
fn servers_and_uplinks() -> String {
    let servers: String = (0..2)
        .map(|number| {
            let name = ["one", "two"][number];
            let addresses = format!("\"203.0.{number}.1:{PORT}\", \"[fd20:{number}::1]:{PORT}\"");
            format!("[[server]]\nname = \"{name}\"\naddresses = [{addresses}]\n")
        })
        .collect();
    format!("{servers}[[uplink]]\ninterface = \"wan*\"\n")
}

fn forwards(namespace: &Namespace) {
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        namespace.sysctl(key, "1").unwrap();
    }
}

//! The ports and interfaces that the parts of Hawser use, by default or by a configuration.

use crate::Part::{self, Agent, Controller, Publish, Relay, Tunnel};
use crate::facts::Port;
use crate::facts::Protocol::{self, Tcp, Udp};
use hawser_io::xdp::Wanted;
use hawser_units::Prefix;
use hawser_wire::SIGNAL_PORT;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::{Table, Value};

/// The ports and interfaces that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) ports: Vec<Port>,
    /// The interfaces that are named. Empty: all.
    pub(crate) interfaces: Vec<String>,
    /// The XDP mode that an agent's configuration asks for.
    pub(crate) xdp: Wanted,
    /// The interfaces and addresses in a tunnel's configuration.
    pub(crate) tunnel: Option<TunnelPlan>,
    /// The file to which the agent of the configuration writes its status.
    pub(crate) status: Option<PathBuf>,
}

/// The interfaces and addresses in the configuration of a tunnel client or server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TunnelPlan {
    /// The TUN device.
    pub(crate) interface: String,
    /// The networks whose packets are forwarded.
    pub(crate) networks: Vec<String>,
    /// Whether packets are forwarded between the tunnel and other interfaces.
    pub(crate) forwards: bool,
    /// The uplinks of a client, which can be patterns.
    pub(crate) uplinks: Vec<String>,
    /// The addresses of a client's servers.
    pub(crate) peers: Vec<IpAddr>,
    /// The destinations that a client routes into the tunnel, and those that it leaves out.
    pub(crate) routes: Vec<Prefix>,
    pub(crate) bypass: Vec<Prefix>,
    /// The routing table for them, if it is not the main one.
    pub(crate) table: Option<i64>,
    /// Whether a client blocks packets to these destinations outside the tunnel.
    pub(crate) kill_switch: bool,
    /// The name servers that a client sets.
    pub(crate) dns: Vec<IpAddr>,
}

impl Default for TunnelPlan {
    fn default() -> Self {
        TunnelPlan {
            interface: "hawser-tun".to_owned(),
            networks: Vec::new(),
            forwards: false,
            uplinks: Vec::new(),
            peers: Vec::new(),
            routes: Vec::new(),
            bypass: Vec::new(),
            table: None,
            kill_switch: false,
            dns: Vec::new(),
        }
    }
}

impl TunnelPlan {
    fn of(file: &Table) -> Option<Self> {
        let tunnel = file.get("tunnel")?.as_table()?;
        let texts = |table: &Table, key: &str| -> Vec<String> {
            let list = table.get(key).and_then(Value::as_array);
            let texts = list.into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        let rows = |key: &str| {
            file.get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let is_set = |key: &str| tunnel.get(key).and_then(Value::as_bool);
        let default = TunnelPlan::default();
        let interface = tunnel.get("interface").and_then(Value::as_str);
        let servers = rows("server").filter_map(Value::as_table);
        let addresses = servers.flat_map(|server| texts(server, "addresses"));
        let peers = addresses.filter_map(|address| Some(address.parse::<SocketAddr>().ok()?.ip()));
        let is_client = file.contains_key("server");
        let lan = texts(tunnel, "lan");
        let (networks, forwards) = match is_client {
            true => {
                let masquerades = is_set("masquerade") == Some(true);
                let routes = if masquerades {
                    texts(tunnel, "routes")
                } else {
                    Vec::new()
                };
                (
                    routes.into_iter().chain(lan.clone()).collect(),
                    masquerades || !lan.is_empty(),
                )
            }
            false => (texts(tunnel, "addresses"), is_set("nat") != Some(false)),
        };
        Some(TunnelPlan {
            interface: interface.map_or(default.interface, str::to_owned),
            networks,
            forwards,
            uplinks: rows("uplink")
                .filter_map(|row| Some(row.get("interface")?.as_str()?.to_owned()))
                .collect(),
            peers: peers.collect(),
            routes: parsed(texts(tunnel, "routes")),
            bypass: parsed(texts(tunnel, "bypass")),
            table: tunnel.get("table").and_then(Value::as_integer),
            kill_switch: is_set("kill_switch") == Some(true),
            dns: parsed(texts(tunnel, "dns")),
        })
    }
}

/// Returns the values of those texts that are valid; the tunnel's own `--check` names the others.
pub(crate) fn parsed<T: FromStr>(texts: Vec<String>) -> Vec<T> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// The default of an agent's `state`.
const AGENT_STATE: &str = "/run/hawser/agent";

const REPLICAS: u16 = 14747;
const ECHO: u16 = 14751;
const MOQ: u16 = 14754;
const TUNNEL: u16 = 14752;
const CONTROLLER: u16 = 14750;
const PUBLISH: u16 = 14748;

impl Plan {
    /// Returns the defaults of all parts.
    pub(crate) fn default_ports() -> Self {
        let mut ports = agent(&Table::new()).to_vec();
        ports.extend([
            port(Udp, MOQ, Relay, "Media over QUIC"),
            port(Udp, TUNNEL, Tunnel, "clients of a tunnel server"),
            port(Tcp, CONTROLLER, Controller, "HTTPS"),
            port(Tcp, PUBLISH, Publish, "viewers"),
            port(Udp, PUBLISH, Publish, "viewers of a pushed stream"),
        ]);
        Plan {
            ports,
            interfaces: Vec::new(),
            xdp: Wanted::Best,
            tunnel: None,
            status: None,
        }
    }

    /// Returns what the configuration of an agent, a relay, a tunnel or a controller names. The part
    /// is recognized by its tables. Other errors of the file are left to the part's own `--check`.
    pub(crate) fn of_config(text: &str) -> Result<Self, toml::de::Error> {
        let file: Table = text.parse()?;
        let named = |key, protocol, part, purpose| {
            let mut numbers = Vec::new();
            listening(&file, key, &mut numbers);
            let port = |number| port(protocol, number, part, purpose);
            numbers.into_iter().map(port).collect::<Vec<_>>()
        };
        let listen = |protocol, part, purpose| named("listen", protocol, part, purpose);
        let (part, mut ports) = if let Some(Value::Table(node)) = file.get("node") {
            let [replicas, signals, echo] = agent(node);
            let controller = file.get("controller");
            let signals = controller
                .and_then(|controller| controller.get("signals"))
                .map(|address| Port {
                    number: port_of(address).unwrap_or(signals.number),
                    ..signals
                });
            let ports = [Some(replicas), signals, Some(echo)].into_iter().flatten();
            (Agent, ports.collect())
        } else if file.contains_key("broadcast") {
            (Relay, listen(Udp, Relay, "viewers"))
        } else if file.contains_key("tunnel") && file.contains_key("server") {
            // A client listens to nothing.
            (Tunnel, Vec::new())
        } else if file.contains_key("tunnel") {
            let mut ports = or(
                listen(Udp, Tunnel, "clients of a tunnel server"),
                port(Udp, TUNNEL, Tunnel, "clients of a tunnel server"),
            );
            ports.extend(named(
                "listen_tcp",
                Tcp,
                Tunnel,
                "clients where UDP is blocked",
            ));
            (Tunnel, ports)
        } else {
            let ports = or(
                listen(Tcp, Controller, "HTTPS"),
                port(Tcp, CONTROLLER, Controller, "HTTPS"),
            );
            (Controller, ports)
        };
        for key in ["metrics", "metrics_listen"] {
            ports.extend(named(key, Tcp, part, "metrics"));
        }
        let node = file.get("node");
        let generic = node.and_then(|node| node.get("generic_xdp")?.as_bool());
        Ok(Plan {
            xdp: Wanted::of(generic),
            status: node.and_then(status_file),
            ports,
            interfaces: interfaces(&file),
            tunnel: TunnelPlan::of(&file),
        })
    }
}

/// Returns the status file of an agent with this table `node`.
fn status_file(node: &Value) -> Option<PathBuf> {
    let name = node.get("name")?.as_str()?;
    let state = node.get("state").and_then(Value::as_str);
    let state = Path::new(state.unwrap_or(AGENT_STATE));
    Some(state.join(name).join("status.json"))
}

fn or(found: Vec<Port>, default: Port) -> Vec<Port> {
    if found.is_empty() {
        vec![default]
    } else {
        found
    }
}

fn port(protocol: Protocol, number: u16, part: Part, purpose: &'static str) -> Port {
    Port {
        protocol,
        number,
        part,
        purpose,
    }
}

fn agent(node: &Table) -> [Port; 3] {
    let number = |key: &str, default| {
        let value = node.get(key).and_then(Value::as_integer);
        value
            .and_then(|value| u16::try_from(value).ok())
            .unwrap_or(default)
    };
    let replicas = number("port", REPLICAS);
    let echo = number("echo_port", ECHO);
    [
        port(Udp, replicas, Agent, "replicas"),
        port(Udp, SIGNAL_PORT, Agent, "signals"),
        port(Udp, echo, Agent, "round-trip times"),
    ]
}

/// Collects the ports of all values of a key at any depth.
fn listening(table: &Table, wanted: &str, numbers: &mut Vec<u16>) {
    for (key, value) in table {
        match value {
            Value::Table(inner) => listening(inner, wanted, numbers),
            Value::Array(values) => {
                for value in values {
                    match value {
                        Value::Table(inner) => listening(inner, wanted, numbers),
                        value if key == wanted => numbers.extend(port_of(value)),
                        _ => {}
                    }
                }
            }
            value if key == wanted => numbers.extend(port_of(value)),
            _ => {}
        }
    }
}

fn port_of(address: &Value) -> Option<u16> {
    let (_, port) = address.as_str()?.rsplit_once(':')?;
    port.parse().ok()
}

/// Returns the interfaces of an agent's paths and traffic, and of a tunnel client's uplinks, each once.
fn interfaces(file: &Table) -> Vec<String> {
    let rows = |key: &str| {
        let rows = file.get(key).and_then(Value::as_array);
        let names = rows.into_iter().flatten();
        names.filter_map(|row| row.get("interface")?.as_str())
    };
    let node = file.get("node").and_then(Value::as_table);
    let lists = ["transit", "local", "watch"].into_iter();
    let listed = lists
        .filter_map(|key| node?.get(key)?.as_array())
        .flatten()
        .filter_map(Value::as_str);
    let mut names: Vec<String> = Vec::new();
    for name in rows("path").chain(rows("uplink")).chain(listed) {
        // Uplinks can be patterns.
        if !name.contains('*') && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> (Vec<(Protocol, u16, Part)>, Vec<String>) {
        let Plan {
            ports, interfaces, ..
        } = Plan::of_config(text).unwrap();
        let ports = ports.iter();
        let ports = ports.map(|port| (port.protocol, port.number, port.part));
        (ports.collect(), interfaces)
    }

    #[test]
    fn an_agent_names_its_ports_and_interfaces() {
        let (ports, interfaces) = plan(
            "[node]\nname = \"a\"\nport = 5000\ntransit = [\"lan0\"]\n\
             [[path]]\ninterface = \"wan0\"\n[[path]]\ninterface = \"wan1\"\n",
        );
        assert_eq!(ports, [(Udp, 5000, Agent), (Udp, 14751, Agent)]);
        assert_eq!(interfaces, ["wan0", "wan1", "lan0"]);
    }

    #[test]
    fn an_agent_measures_and_one_with_a_controller_hears_signals() {
        let numbers = |tables: &str| {
            let (ports, _) = plan(&format!("[node]\n{tables}"));
            ports.iter().map(|port| port.1).collect::<Vec<_>>()
        };
        assert_eq!(numbers(""), [14747, 14751]);
        assert_eq!(numbers("echo_port = 9"), [14747, 9]);
        assert_eq!(numbers("[controller]\n"), [14747, 14751]);
        let signals = |at: &str| numbers(&format!("[controller]\nsignals = \"{at}\""));
        assert_eq!(signals("192.0.2.1"), [14747, 14749, 14751]);
        assert_eq!(signals("192.0.2.1:8"), [14747, 8, 14751]);
    }

    #[test]
    fn an_agent_may_ask_for_an_xdp_mode() {
        let wanted = |node| Plan::of_config(node).unwrap().xdp;
        assert_eq!(wanted("[node]\n"), Wanted::Best);
        assert_eq!(wanted("[node]\ngeneric_xdp = true\n"), Wanted::Generic);
        assert_eq!(wanted("[node]\ngeneric_xdp = false\n"), Wanted::Native);
    }

    #[test]
    fn servers_name_where_they_listen() {
        let relay =
            "[[broadcast]]\nlisten = \"192.0.2.9:14750\"\nmoq = { listen = \"127.0.0.1:9\" }\n";
        assert_eq!(plan(relay).0, [(Udp, 14750, Relay), (Udp, 9, Relay)]);
        let server = "[tunnel]\nlisten = [\"[::]:1\", \"0.0.0.0:2\"]\n";
        assert_eq!(plan(server).0, [(Udp, 1, Tunnel), (Udp, 2, Tunnel)]);
        let server = "[tunnel]\nlisten_tcp = [\"[::]:443\"]\nmetrics = \"127.0.0.1:9100\"\n";
        assert_eq!(
            plan(server).0,
            [
                (Udp, 14752, Tunnel),
                (Tcp, 443, Tunnel),
                (Tcp, 9100, Tunnel)
            ]
        );
        let client = "[tunnel]\n[[server]]\nname = \"x\"\n[[uplink]]\ninterface = \"wwan*\"\n[[uplink]]\ninterface = \"eth1\"\n";
        assert_eq!(plan(client), (vec![], vec!["eth1".to_owned()]));
        assert_eq!(plan("").0, [(Tcp, 14750, Controller)]);
        let controller = "listen = \"0.0.0.0:7\"\nmetrics_listen = \"127.0.0.1:8\"\n";
        assert_eq!(
            plan(controller).0,
            [(Tcp, 7, Controller), (Tcp, 8, Controller)]
        );
    }
}

//! The settings of the kernel that programs keep while they run, examined without changing them.

use crate::Part::{self, Agent, Tunnel};
use crate::facts::KeptFacts;
use crate::plan::{Plan, TunnelPlan, parsed};
use hawser_io::interface;
use hawser_io::kept::{
    AllRules, ForwardedPass, Forwarding, InnerFamily, Item, NameServer, NoReversePathRule, OwnArp,
    Rules, Traffic, TunnelEnd, TunnelRoutes, UplinkRoute, UplinkState,
};
use hawser_units::Prefix;
use std::net::IpAddr;

const BOTH: &[Part] = &[Agent, Tunnel];

/// Examines what the programs of the plan need.
pub(super) fn read(plan: &Plan) -> Vec<KeptFacts> {
    let tunnel = plan.tunnel.clone().unwrap_or_default();
    let all = interface::all().unwrap_or_default();
    let names = all.iter().filter(|known| !known.is_loopback);
    let names: Vec<_> = names.map(|known| known.name.clone()).collect();
    let matching = |wanted: &[String]| -> Vec<String> {
        let is_wanted = |name: &&String| {
            let mut wanted = wanted.iter();
            wanted.any(|pattern| interface::name_matches(pattern, name))
        };
        names.iter().filter(is_wanted).cloned().collect()
    };
    let used = match (plan.interfaces.as_slice(), tunnel.uplinks.as_slice()) {
        ([], []) => names.clone(),
        (named, uplinks) => matching(&[named, uplinks].concat()),
    };
    let mut rules = Rules::default();
    let pass = ForwardedPass {
        interface: tunnel.interface.clone(),
        traffic: match tunnel.uplinks.is_empty() {
            true => Traffic::OpenedFrom,
            false => Traffic::OpenedTo,
        },
        networks: tunnel.networks.clone(),
        consequence: "a tunnel's clients, and hosts behind an end, reach nothing but that end"
            .to_owned(),
        rules: rules.current(),
    };
    let mut found = reverse_path_rules(&tunnel, &used, &matching(&tunnel.uplinks), &mut rules);
    found.push(KeptFacts {
        is_needed: tunnel.forwards,
        ..facts(
            "firewall.forwarding",
            None,
            &[Tunnel],
            &pass,
            "nftables lets forwarded packets of a tunnel pass.",
        )
    });
    if tunnel.forwards {
        found.extend(
            [false, true]
                .map(|is_ipv6| forwarding(is_ipv6, &tunnel))
                .into_iter()
                .flatten(),
        );
    }
    found.push(all_rules(&mut rules));
    found.extend(uplinks(&tunnel, &matching(&tunnel.uplinks)));
    found.extend(name_servers(&tunnel));
    found.extend(inside(&tunnel));
    found
}

/// Examines whether all rules are known.
fn all_rules(rules: &mut Rules) -> KeptFacts {
    let item = AllRules {
        rules: rules.current(),
    };
    let fine = "No rules of iptables are unread.";
    facts("firewall.read", None, BOTH, &item, fine)
}

/// Examines the rules that filter by the route back. A tunnel client loses packets by them only if its
/// servers are not routed over each uplink.
fn reverse_path_rules(
    tunnel: &TunnelPlan,
    used: &[String],
    uplinks: &[String],
    rules: &mut Rules,
) -> Vec<KeptFacts> {
    let mut rule = |interfaces: &[String], peers| NoReversePathRule {
        interfaces: interfaces.to_vec(),
        peers,
        rules: rules.current(),
    };
    let any = rule(used, None);
    let fine = "No rule of nftables filters by the route back.";
    // While the client does not run, the route back is another one.
    let will_change = tunnel.peers.iter().any(|peer| is_in(&tunnel.routes, *peer));
    if tunnel.peers.is_empty() || will_change {
        return vec![facts("firewall.rules", None, BOTH, &any, fine)];
    }
    let of_servers = rule(uplinks, Some(tunnel.peers.clone()));
    let fine_for_tunnel = "No rule of nftables drops packets of the servers by the route back.";
    vec![
        facts("firewall.rules", None, &[Agent], &any, fine),
        facts(
            "firewall.rules",
            None,
            &[Tunnel],
            &of_servers,
            fine_for_tunnel,
        ),
    ]
}

fn is_in(prefixes: &[Prefix], address: IpAddr) -> bool {
    let host = Prefix::host(address);
    prefixes.iter().any(|prefix| prefix.contains(host))
}

/// Examines the name servers that a tunnel client should ask through the tunnel.
fn name_servers(tunnel: &TunnelPlan) -> Vec<KeptFacts> {
    let routes_all = tunnel.routes.iter().any(|prefix| prefix.bits() == 0);
    let is_routed =
        |address| tunnel.table.is_none() && (routes_all || is_in(&tunnel.routes, address));
    let (device, is_blocked) = (&tunnel.interface, tunnel.kill_switch);
    let servers = NameServer::of_client(device, &tunnel.dns, is_routed, is_blocked);
    let servers = servers
        .into_iter()
        .filter(|server| !tunnel.uplinks.is_empty() && !is_in(&tunnel.bypass, server.address));
    let examined = servers.map(|server| {
        let address = server.address.to_string();
        let fine = format!("The name server {address} is not asked outside the tunnel.");
        facts("tunnel.names", Some(address), &[Tunnel], &server, &fine)
    });
    examined.collect()
}

/// Examines what packets need to enter a tunnel, while an end of it runs.
fn inside(tunnel: &TunnelPlan) -> Vec<KeptFacts> {
    let families = InnerFamily::of_routes(&tunnel.interface, &tunnel.routes, tunnel.kill_switch);
    let mut found: Vec<_> = families.map(|item| family(&item)).collect();
    let is_client = !tunnel.uplinks.is_empty();
    let routes = TunnelRoutes {
        interface: tunnel.interface.clone(),
        inside: match is_client {
            true => tunnel.routes.clone(),
            false => parsed(tunnel.networks.clone()),
        },
        outside: [tunnel.bypass.clone(), hosts(&tunnel.peers)].concat(),
        end: match is_client {
            true => TunnelEnd::Client {
                table: tunnel.table.and_then(|table| table.try_into().ok()),
                is_blocked: tunnel.kill_switch,
            },
            false => TunnelEnd::Server,
        },
    };
    let fine = "The kernel uses the routes by the tunnel's device, or the tunnel does not run.";
    found.push(facts("tunnel.routes", None, &[Tunnel], &routes, fine));
    found
}

fn hosts(addresses: &[IpAddr]) -> Vec<Prefix> {
    addresses
        .iter()
        .map(|address| Prefix::host(*address))
        .collect()
}

/// Examines an IP version that `routes` leads into the tunnel.
fn family(item: &InnerFamily) -> KeptFacts {
    let fine = "The tunnel has an address of this IP version inside, or does not run.";
    let subject = if item.is_ipv6 { "IPv6" } else { "IPv4" };
    facts(
        "tunnel.family",
        Some(subject.to_owned()),
        &[Tunnel],
        item,
        fine,
    )
}

/// Examines the forwarding that the configuration needs.
fn forwarding(is_ipv6: bool, tunnel: &TunnelPlan) -> Option<KeptFacts> {
    let mut networks = tunnel.networks.iter();
    networks
        .any(|network| network.contains(':') == is_ipv6)
        .then(|| {
            let item = Forwarding {
                is_ipv6,
                interfaces: vec![tunnel.interface.clone()],
                consequence: "the configuration forwards packets between the tunnel and others"
                    .to_owned(),
            };
            let fine = "This machine forwards packets, as the configuration needs.";
            KeptFacts {
                is_needed: true,
                ..facts(
                    "tunnel.forwarding",
                    Some(item.name()),
                    &[Tunnel],
                    &item,
                    fine,
                )
            }
        })
}

/// Examines the uplinks of a tunnel client.
fn uplinks(tunnel: &TunnelPlan, uplinks: &[String]) -> Vec<KeptFacts> {
    let mut found = Vec::new();
    let named = tunnel.uplinks.iter().filter(|name| !name.contains('*'));
    for name in named {
        let item = UplinkState {
            interface: name.clone(),
        };
        let fine = format!("The uplink {name} is up and has a carrier.");
        found.push(KeptFacts {
            is_needed: true,
            ..facts("uplink.state", Some(name.clone()), &[Tunnel], &item, &fine)
        });
    }
    for name in uplinks {
        let route = UplinkRoute {
            interface: name.clone(),
            peers: tunnel.peers.clone(),
        };
        let fine = format!("There is no server without a route over {name} alone.");
        found.push(KeptFacts {
            is_needed: true,
            ..facts("uplink.route", Some(name.clone()), &[Tunnel], &route, &fine)
        });
        let arp = OwnArp {
            interface: name.clone(),
            uplinks: uplinks.to_vec(),
        };
        let fine = format!("{name} answers ARP requests as it should.");
        found.push(facts(
            "uplink.arp",
            Some(name.clone()),
            &[Tunnel],
            &arp,
            &fine,
        ));
    }
    found
}

fn facts(
    id: &'static str,
    subject: Option<String>,
    parts: &'static [Part],
    item: &dyn Item,
    fine: &str,
) -> KeptFacts {
    KeptFacts {
        id,
        subject,
        parts,
        is_needed: false,
        problem: item.examine(),
        fine: fine.to_owned(),
    }
}

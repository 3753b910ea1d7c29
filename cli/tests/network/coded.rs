//! The coded tunnel as a path of agents: its device is the interface of a path between the edges, beside
//! one of the uplinks that the tunnel itself uses.

mod controlled;
mod relayed;
mod rig;

use hawser_testbed::edges::{Outer, Sender};
use hawser_testbed::traffic::{Family, Kind};
use rig::{CODED, PLAIN, Rig, Tunnel};

/// One packet in this many is lost on each uplink, in either direction.
const LOSES_ONE_IN: u32 = 20;

#[test]
fn a_flow_on_the_coded_path_alone_arrives_despite_losses() {
    for sender in [Sender::Source, Sender::Ingress] {
        let mut rig = Rig::new(&[CODED], sender, Outer::V4);
        rig.tunnel.lose(LOSES_ONE_IN);
        for family in [Family::Ipv4, Family::Ipv6] {
            rig.loses_none(Kind::UdpConnected, family);
        }
        rig.bring_copies(&[CODED]);
    }
}

#[test]
fn copies_on_a_plain_and_the_coded_path_are_deduplicated() {
    let mut rig = Rig::new(&[PLAIN, CODED], Sender::Source, Outer::V4);
    for family in [Family::Ipv4, Family::Ipv6] {
        rig.loses_none(Kind::UdpConnected, family);
    }
    rig.bring_copies(&[PLAIN, CODED]);
    let (ingress, egress) = rig.status();
    for status in [ingress, egress] {
        let is_tunnel = |path: u8| status["paths"][path.to_string()]["tunnel"].clone();
        assert_eq!(
            (is_tunnel(PLAIN), is_tunnel(CODED)),
            (false.into(), true.into())
        );
    }
}

#[test]
fn trains_and_connections_take_the_coded_path() {
    for outer in [Outer::V4, Outer::V6] {
        for sender in [Sender::Source, Sender::Ingress] {
            let mut rig = Rig::new(&[CODED], sender, outer);
            for kind in [Kind::UdpGso, Kind::Tcp] {
                rig.loses_none(kind, Family::Ipv4);
            }
            rig.bring_copies(&[CODED]);
        }
    }
}

#[test]
fn packets_that_do_not_fit_the_tunnel_take_the_other_path() {
    const FITS_PLAIN_ONLY: usize = 1390;
    let mut rig = Rig::new(&[PLAIN, CODED], Sender::Source, Outer::V4);
    let (ingress, _) = rig.status();
    let path = &ingress["paths"][CODED.to_string()];
    assert_eq!(
        path["mtu_bytes"].as_u64(),
        Some(rig.device_mtu()),
        "{path:#}"
    );
    rig.widen_routes();
    let report = rig.send(Kind::UdpConnected, Family::Ipv4, FITS_PLAIN_ONLY);
    assert!(report.is_complete(), "{report:?}\n{}", rig.explain());
    let too_large = |path: &str| {
        let text = format!("/paths/{path}/too_large");
        move |status: &serde_json::Value| status.pointer(&text).and_then(|count| count.as_u64())
    };
    let coded = too_large(&CODED.to_string());
    rig.edges
        .ingress_agent
        .wait_until("counted packets that are too large", |status| {
            coded(status) >= Some(1_000)
        })
        .unwrap();
}

/// Checks that no packet is lost while an end of the tunnel is dead, once that was noticed, and that the flow is on the
/// path again afterwards.
fn leaves_and_returns(kill: fn(&mut Tunnel), start: fn(&mut Tunnel), reason: &str) {
    let mut rig = Rig::new(&[CODED], Sender::Source, Outer::V4);
    rig.loses_none(Kind::UdpConnected, Family::Ipv4);
    kill(&mut rig.tunnel);
    rig.await_path(false, reason);
    rig.loses_none(Kind::UdpConnected, Family::Ipv4);
    start(&mut rig.tunnel);
    rig.await_path(true, "");
    let before = rig.copies(CODED);
    rig.loses_none(Kind::UdpConnected, Family::Ipv4);
    rig.bring_copies_after(CODED, before);
}

#[test]
fn flows_take_the_default_route_while_the_client_is_dead() {
    leaves_and_returns(Tunnel::kill_client, Tunnel::start_client, "does not exist");
}

#[test]
fn flows_take_the_default_route_while_the_server_is_dead() {
    let reason = "does not answer through the tunnel";
    leaves_and_returns(Tunnel::kill_server, Tunnel::start_server, reason);
}

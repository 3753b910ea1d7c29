//! Who and what is not let in.

use crate::certificates::Authority;
use crate::rig::{HOST4, PORT, Rig};
use crate::traffic::echo;
use std::net::{IpAddr, SocketAddr, UdpSocket};

#[test]
fn a_source_that_is_not_the_client_s_is_dropped() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let _client = rig.client("");
    rig.client
        .ip("addr add 10.77.9.9/32 dev hawser-tun\naddr add fd77::9999/128 dev hawser-tun nodad")
        .unwrap();
    for (own, to) in [("10.77.9.9", HOST4), ("fd77::9999", crate::rig::HOST6)] {
        let (own, to): (IpAddr, IpAddr) = (own.parse().unwrap(), to.parse().unwrap());
        let socket = rig.client.run(|| UdpSocket::bind((own, 0)).unwrap()).unwrap();
        socket.send_to(b"not mine", (to, 9)).unwrap();
    }
    server.until_counted("spoofed", 2);
    echo(&rig.client, &rig.host, HOST4);
}

#[test]
fn clients_do_not_reach_each_other() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let _client = rig.client("");
    let other: SocketAddr = "10.77.200.200:9".parse().unwrap();
    let socket = rig.client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    socket.send_to(b"is there anybody?", other).unwrap();
    server.until_counted("to_other_client", 1);
}

#[test]
fn certificates_of_another_authority_are_refused() {
    let rig = Rig::new();
    let stranger = Authority::new();
    let server = rig.server(0, "", "");
    let tls = stranger.credentials(rig.folder.path(), "stranger");
    // It trusts the servers, which do not trust it.
    let tls = tls.replace("stranger.authority.pem", "one.authority.pem");
    let config = client_config(&rig, "stranger", &tls, "one");
    let client = rig.start(&rig.client, "stranger", "client", &config);
    server.until_counted("connection_handshake", 1);
    client.until("no session", |status| status.sessions.is_empty());
    assert!(server.until("nobody is let in", |_| true).sessions.is_empty());
}

#[test]
fn a_server_of_another_name_is_not_talked_to() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let tls = rig.authority.credentials(rig.folder.path(), "car");
    let client = rig.start(&rig.client, "car", "client", &client_config(&rig, "car", &tls, "somebody-else"));
    server.until_counted("connection_handshake", 1);
    client.until("no session", |status| status.sessions.is_empty());
}

#[test]
fn a_client_that_is_not_listed_is_not_admitted() {
    let rig = Rig::new();
    let server = rig.server(0, "open = false", "[[client]]\nname = \"bus\"\naddresses = [\"10.77.0.50\"]\n");
    let _car = rig.lonely_client("car", "");
    server.until_counted("connection_not_admitted", 1);
    drop(_car);
    let bus = rig.lonely_client("bus", "");
    assert_eq!(bus.session().addresses[0], IpAddr::from([10, 77, 0, 50]));
}

#[test]
fn garbage_at_the_port_of_a_server_does_no_harm() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let socket = rig.client.run(|| UdpSocket::bind("10.1.0.1:0").unwrap()).unwrap();
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for length in (0..1400).chain([1200; 500]) {
        let mut datagram: Vec<u8> = (0..length).map(|_| random()).collect();
        if length == 1200 {
            // The beginning of a first packet of QUIC version 1.
            datagram[..7].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8, 1]);
        }
        socket.send_to(&datagram, ("203.0.0.1", PORT)).unwrap();
    }
    let _client = rig.client("");
    echo(&rig.client, &rig.host, HOST4);
    server.until("the client is the only one", |status| status.sessions.len() == 1);
}

fn client_config(rig: &Rig, name: &str, tls: &str, server: &str) -> String {
    format!(
        "[tunnel]\nname = \"{name}\"\nstate = \"{}\"\n{tls}\n[[server]]\nname = \"{server}\"\n\
         addresses = [\"203.0.0.1:{PORT}\"]\n[[uplink]]\ninterface = \"wan*\"\n",
        rig.folder.path().display()
    )
}

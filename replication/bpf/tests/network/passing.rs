//! The program that passes every frame, with which some drivers accept frames from XDP.

use crate::paths::*;
use crate::support::*;
use hawser_io::netlink::xdp_features;
use hawser_replication_bpf::{AttachError, Passing, Receiver, XdpMode, xdp_mode};
use hawser_testbed::ring::Port;
use hawser_wire::ip;
use std::net::UdpSocket;

/// In a veth pair, the other end accepts the frames.
#[test]
fn frames_are_accepted_while_the_program_is_attached() {
    in_namespace("passing", || {
        let takes_frames = || xdp_features(number("far-lan")).unwrap().is_target;
        assert!(!takes_frames());
        let passing = Passing::load().unwrap();
        let link = passing.attach(number("lan")).unwrap();
        assert!(takes_frames());
        assert_eq!(xdp_mode(number("lan")).unwrap(), Some(XdpMode::Native));
        let socket = UdpSocket::bind("192.0.2.1:2000").unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let ends = ["192.0.2.7:1000", "192.0.2.1:2000"].map(|end| end.parse().unwrap());
        let packet = ip::udp_packet(ends[0], ends[1], 0, b"passed");
        let far = Port::open("far-lan").unwrap();
        far.sender.send(&[arriving(&packet)]).unwrap();
        let mut received = [0; 16];
        assert_eq!(socket.recv(&mut received).unwrap(), 6);
        drop((link, far));
        assert!(!takes_frames());
        assert_eq!(xdp_mode(number("lan")).unwrap(), None);
    });
}

#[test]
fn the_program_makes_way_for_another_one() {
    in_namespace("way", || {
        let passing = Passing::load().unwrap();
        let link = passing.attach(number("wan0")).unwrap();
        let mut receiver = Receiver::load(&receiver_options()).unwrap();
        let here = [(number("wan0"), XdpMode::Native)];
        let refused = receiver.attach(&here);
        assert!(matches!(refused, Err(AttachError::Occupied { .. })));
        link.detach().unwrap();
        receiver.attach(&here).unwrap();
    });
}

#[test]
fn a_driver_without_native_xdp_refuses_the_program() {
    in_namespace("loopback", || {
        let refused = Passing::load().unwrap().attach(number("lo"));
        assert!(matches!(refused, Err(AttachError::NoNativeXdp { .. })));
    });
}

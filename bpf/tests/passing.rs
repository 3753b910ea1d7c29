//! The program that passes every frame, with which some drivers accept frames from XDP.

#[path = "support/paths.rs"]
mod paths;
mod support;

use hawser_bpf::{AttachError, Passing, Receiver, XdpMode, xdp_mode};
use hawser_io::netlink::xdp_features;
use hawser_io::ring::Port;
use paths::*;
use support::*;

/// Of a veth pair, it is the other end that accepts frames.
#[test]
fn frames_are_accepted_while_the_program_is_attached_and_pass_it() {
    in_namespace("passing", || {
        let takes_frames = || xdp_features(number("far-wan0")).unwrap().is_target;
        assert!(!takes_frames());
        let passing = Passing::load().unwrap();
        let link = passing.attach(number("wan0")).unwrap();
        assert!(takes_frames());
        assert_eq!(xdp_mode(number("wan0")).unwrap(), Some(XdpMode::Native));
        let far = Port::open("far-wan0").unwrap();
        let mut near = Port::open("wan0").unwrap();
        let frame = arriving(&udp4("203.0.113.9", b"x"));
        far.sender.send(std::slice::from_ref(&frame)).unwrap();
        assert_eq!(receive(&mut near, 1), [frame]);
        drop((link, near, far));
        assert!(!takes_frames());
        assert_eq!(xdp_mode(number("wan0")).unwrap(), None);
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

//! A receiver that takes over what an earlier one has pinned goes on where that one was.

mod support;

use hawser_bpf::{Receiver, ReceiverOptions, XdpMode};
use hawser_io::netns::Namespace;
use std::path::Path;
use support::*;

fn load(pins: &Path) -> Receiver {
    Receiver::load(&ReceiverOptions { pins: Some(pins.to_owned()), ..receiver_options() }).unwrap()
}

#[test]
fn tables_and_attachments_are_taken_over() {
    let pins = bpf_file_system().join(format!("hawser-test-{}-pins", std::process::id()));
    let namespace = Namespace::create(format!("hawser-test-{}-pins", std::process::id())).unwrap();
    namespace.ip("link add wan type veth peer name far\nlink set wan up\nlink set far up").unwrap();
    let result = namespace.run(|| std::panic::catch_unwind(|| take_over(&pins)));
    namespace.delete().unwrap();
    let _ = std::fs::remove_dir_all(&pins);
    result.unwrap().unwrap();
}

fn take_over(pins: &Path) {
    let device = nix::net::if_::if_nametoindex("wan").unwrap();
    let frame = |sequence| replica(path(0), sequence, &udp4("192.0.2.9", b"x"));
    let mut first = load(pins);
    first.set_path(path(0), Some(HERE_V4.into())).unwrap();
    first.set_flow(flow(7), Some(&Default::default())).unwrap();
    first.attach(device, XdpMode::Native).unwrap();
    assert_eq!(first.run(&frame(1 << 40), 1).unwrap().action, XDP_PASS);
    drop(first);

    let mut second = load(pins);
    assert_eq!(second.run(&frame(1 << 40), 1).unwrap().action, XDP_DROP, "the window was kept");
    assert_eq!(second.run(&frame((1 << 40) + 1), 1).unwrap().action, XDP_PASS, "paths and flows too");
    assert_eq!(second.stats(flow(7), path(0)).unwrap().packets, 3, "and counters");
    second.attach(device, XdpMode::Native).unwrap();
    let mut stranger = Receiver::load(&receiver_options()).unwrap();
    let occupied = stranger.attach(device, XdpMode::Native);
    assert!(matches!(occupied, Err(hawser_bpf::AttachError::Occupied { .. })), "{occupied:?}");

    second.detach().unwrap();
    assert!(!pins.exists());
    stranger.attach(device, XdpMode::Native).unwrap();
    let third = load(pins);
    assert_eq!(third.run(&frame(1 << 40), 1).unwrap().frame, frame(1 << 40), "nothing was left behind");
}

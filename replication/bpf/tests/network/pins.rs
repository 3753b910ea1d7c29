//! A receiver takes over what an earlier one has pinned and continues from its state.

use crate::support::*;
use hawser_replication_bpf::{Receiver, ReceiverOptions, XdpMode};
use hawser_shim::transparent;
use hawser_testbed::netns::Namespace;
use libbpf_rs::{MapHandle, MapType};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::time::Duration;

fn load(pins: &Path) -> Receiver {
    Receiver::load(&ReceiverOptions {
        pins: Some(pins.to_owned()),
        ..receiver_options()
    })
    .unwrap()
}

/// Loads a receiver of flow 7 on path 0.
fn load_filled(pins: &Path) -> Receiver {
    let receiver = load(pins);
    receiver.set_path(path(0), Some(HERE_V4.into())).unwrap();
    receiver
        .set_flow(flow(7), Some(&Default::default()))
        .unwrap();
    receiver
}

fn frame(sequence: u64) -> Vec<u8> {
    replica(path(0), sequence, &udp4("192.0.2.9", b"x"))
}

/// Runs a test with a path for pins, in a namespace with the devices `wan` and `lan`.
fn with_devices(name: &str, test: impl FnOnce(&Path, [u32; 2]) + Send + std::panic::UnwindSafe) {
    let name = format!("hawser-test-{}-{name}", std::process::id());
    let pins = bpf_file_system().join(&name);
    let namespace = Namespace::create(name).unwrap();
    for device in ["wan", "lan"] {
        let pair = format!("link add {device} type veth peer name far-{device}");
        namespace
            .ip(&format!(
                "{pair}\nlink set {device} up\nlink set far-{device} up"
            ))
            .unwrap();
    }
    let number = |name| nix::net::if_::if_nametoindex(name).unwrap();
    let run = || std::panic::catch_unwind(|| test(&pins, ["wan", "lan"].map(number)));
    let result = namespace.run(run);
    namespace.delete().unwrap();
    let _ = std::fs::remove_dir_all(&pins);
    result.unwrap().unwrap();
}

/// The words that `ip link` prints for a device.
fn described(device: &str) -> Vec<String> {
    let output = std::process::Command::new("ip")
        .args(["link", "show", "dev", device])
        .output()
        .unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// The attachment mode of a device's XDP program as `ip link` prints it, if there is a program.
fn xdp(device: &str) -> Option<String> {
    described(device)
        .into_iter()
        .find(|word| word.starts_with("xdp"))
}

/// The number of the XDP program of a device.
fn xdp_program(device: &str) -> Option<String> {
    described(device)
        .into_iter()
        .skip_while(|word| word != "prog/xdp")
        .nth(2)
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn windows_counters_and_attachments_are_taken_over() {
    with_devices("pins", |pins, [device, _]| {
        let mut first = load_filled(pins);
        first.attach(&[(device, XdpMode::Native)]).unwrap();
        assert_eq!(first.run(&frame(1 << 40), 1).unwrap().action, XDP_PASS);
        drop(first);

        let mut second = load_filled(pins);
        assert_eq!(
            second.run(&frame(1 << 40), 1).unwrap().action,
            XDP_DROP,
            "the window was preserved"
        );
        assert_eq!(
            second.run(&frame((1 << 40) + 1), 1).unwrap().action,
            XDP_PASS
        );
        assert_eq!(
            second.stats(flow(7), path(0)).unwrap().packets,
            3,
            "the counters were preserved"
        );
        second.attach(&[(device, XdpMode::Native)]).unwrap();
        let mut other = Receiver::load(&receiver_options()).unwrap();
        let occupied = other.attach(&[(device, XdpMode::Native)]);
        assert!(
            matches!(
                occupied,
                Err(hawser_replication_bpf::AttachError::Occupied { .. })
            ),
            "{occupied:?}"
        );

        second.detach().unwrap();
        assert!(!pins.exists());
        other.attach(&[(device, XdpMode::Native)]).unwrap();
        let third = load_filled(pins);
        assert_eq!(
            third.run(&frame(1 << 40), 1).unwrap().action,
            XDP_PASS,
            "no state was left behind"
        );
    });
}

#[test]
fn pins_that_root_makes_belong_to_the_owner_of_their_folder() {
    const SERVICE: u32 = 65534;
    with_devices("owner", |pins, [device, _]| {
        std::fs::create_dir(pins).unwrap();
        chown(pins, Some(SERVICE), Some(SERVICE)).unwrap();
        let node = pins.join("node");
        load_filled(&node)
            .attach(&[(device, XdpMode::Native)])
            .unwrap();
        let mut folders = vec![pins.to_owned()];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = std::fs::symlink_metadata(&path).unwrap();
                let owner = (metadata.uid(), metadata.gid());
                assert_eq!(owner, (SERVICE, SERVICE), "{}", path.display());
                match metadata.is_dir() {
                    true => folders.push(path),
                    false => files += 1,
                }
            }
        }
        assert!(files > 2, "tables and an attachment: {files}");
    });
}

#[test]
fn a_pin_that_is_no_table_is_named() {
    with_devices("named", |pins, [device, _]| {
        load_filled(pins)
            .attach(&[(device, XdpMode::Native)])
            .unwrap();
        let folder = std::fs::read_dir(pins).unwrap().map(|entry| entry.unwrap());
        let tables = folder.map(|entry| entry.path()).find(|path| path.is_dir());
        let table = std::fs::read_dir(tables.unwrap()).unwrap().next().unwrap();
        let table = table.unwrap().path();
        std::fs::remove_file(&table).unwrap();
        std::fs::create_dir(&table).unwrap();
        let refused = Receiver::load(&ReceiverOptions {
            pins: Some(pins.to_owned()),
            ..receiver_options()
        });
        let refused = refused.err().unwrap().to_string();
        assert!(refused.contains(table.to_str().unwrap()), "{refused}");
    });
}

/// Each process has another key to begin with.
#[test]
fn transparent_copies_are_recognized_across_a_restart() {
    with_devices("clear", |pins, [device, _]| {
        let load = |fingerprint_key| {
            let receiver = Receiver::load(&ReceiverOptions {
                pins: Some(pins.to_owned()),
                fingerprint_key,
                transparent_within: Duration::from_secs(3600),
                ..receiver_options()
            })
            .unwrap();
            let everything = [everything_of(7)];
            receiver
                .select_transparent(prefix("192.0.2.0/24"), &everything)
                .unwrap();
            receiver
        };
        let copy = |by: u8, id| {
            let packet = with_id(udp4("192.0.2.9", b"transparent"), id);
            decapsulated(&with_tos(packet, transparent::tos(path(by), 0)))
        };
        let mut first = load([1, 2]);
        first.attach(&[(device, XdpMode::Native)]).unwrap();
        assert_eq!(first.run(&copy(0, 7), 1).unwrap().action, XDP_PASS);

        // While both run, each recognizes what the other one has seen.
        let second = load([3, 4]);
        assert_eq!(second.run(&copy(1, 7), 1).unwrap().action, XDP_DROP);
        assert_eq!(second.run(&copy(1, 8), 1).unwrap().action, XDP_PASS);
        assert_eq!(first.run(&copy(0, 8), 1).unwrap().action, XDP_DROP);
        drop(first);
        assert_eq!(load([5, 6]).run(&copy(2, 8), 1).unwrap().action, XDP_DROP);
    });
}

#[test]
fn flows_and_paths_of_an_earlier_receiver_are_unknown() {
    with_devices("rows", |pins, [device, _]| {
        load_filled(pins)
            .attach(&[(device, XdpMode::Native)])
            .unwrap();
        let receiver = load(pins);
        assert_eq!(
            receiver.run(&frame(1), 1).unwrap().frame,
            frame(1),
            "no path is configured"
        );
        receiver.set_path(path(0), Some(HERE_V4.into())).unwrap();
        assert_eq!(
            receiver.run(&frame(1), 1).unwrap().action,
            XDP_DROP,
            "no flow is configured"
        );
    });
}

#[test]
fn a_failed_attachment_changes_nothing() {
    with_devices("refused", |pins, devices| {
        let [free, taken] = devices;
        let mut other = Receiver::load(&receiver_options()).unwrap();
        other.attach(&[(taken, XdpMode::Native)]).unwrap();
        let refused = load_filled(pins).attach(&devices.map(|device| (device, XdpMode::Native)));
        assert!(
            matches!(
                refused,
                Err(hawser_replication_bpf::AttachError::Occupied { .. })
            ),
            "{refused:?}"
        );
        assert_eq!((xdp("wan"), pins.exists()), (None, false));

        load_filled(pins)
            .attach(&[(free, XdpMode::Native)])
            .unwrap();
        let before = names(pins);
        // With the other mode, so that the attachment would have to be made again.
        assert!(
            load_filled(pins)
                .attach(&devices.map(|device| (device, XdpMode::Generic)))
                .is_err()
        );
        assert_eq!((xdp("wan").as_deref(), names(pins)), (Some("xdp"), before));
    });
}

#[test]
fn an_unsupported_mode_restores_the_old_program() {
    with_devices("mode", |pins, [device, _]| {
        load_filled(pins)
            .attach(&[(device, XdpMode::Generic)])
            .unwrap();
        // The loopback device's driver has no native XDP.
        let loopback = 1;
        load_filled(pins)
            .attach(&[(device, XdpMode::Generic), (loopback, XdpMode::Generic)])
            .unwrap();
        let before = names(pins);
        let refused =
            load_filled(pins).attach(&[(device, XdpMode::Native), (loopback, XdpMode::Native)]);
        assert!(
            matches!(
                refused,
                Err(hawser_replication_bpf::AttachError::NoNativeXdp { .. })
            ),
            "{refused:?}"
        );
        assert_eq!(
            (xdp("wan").as_deref(), names(pins)),
            (Some("xdpgeneric"), before)
        );

        let gaps = load_filled(pins)
            .attach(&[(device, XdpMode::Native)])
            .unwrap();
        assert_eq!(
            gaps.iter().map(|(ifindex, _)| *ifindex).collect::<Vec<_>>(),
            [device]
        );
        assert_eq!(xdp("wan").as_deref(), Some("xdp"));
        let gaps = load_filled(pins)
            .attach(&[(device, XdpMode::Native)])
            .unwrap();
        assert!(gaps.is_empty(), "the attachment is reused: {gaps:?}");
    });
}

#[test]
fn a_failed_pin_restores_the_old_program() {
    with_devices("unkept", |pins, [wan, lan]| {
        load_filled(pins)
            .attach(&[(wan, XdpMode::Generic)])
            .unwrap();
        let before = (xdp_program("wan"), names(pins));
        // A pin cannot replace a folder.
        let blocked = pins.join(format!("link-{lan}"));
        for mode in [XdpMode::Native, XdpMode::Generic] {
            std::fs::create_dir(&blocked).unwrap();
            let refused = load_filled(pins).attach(&[(wan, mode), (lan, mode)]);
            assert!(
                matches!(
                    refused,
                    Err(hawser_replication_bpf::AttachError::Pin { .. })
                ),
                "{refused:?}"
            );
            std::fs::remove_dir(&blocked).unwrap();
            assert_eq!(
                (xdp("wan").as_deref(), xdp("lan")),
                (Some("xdpgeneric"), None),
                "{mode:?}"
            );
            assert_eq!((xdp_program("wan"), names(pins)), before, "{mode:?}");
        }
        load_filled(pins)
            .attach(&[(wan, XdpMode::Native), (lan, XdpMode::Native)])
            .unwrap();
        assert_eq!(
            (xdp("wan").as_deref(), xdp("lan").as_deref()),
            (Some("xdp"), Some("xdp"))
        );
    });
}

#[test]
fn pins_that_cannot_all_be_made_are_all_removed() {
    with_devices("partly", |pins, [wan, lan]| {
        let blocked = format!("link-{lan}");
        std::fs::create_dir_all(pins.join(&blocked)).unwrap();
        let refused = load_filled(pins).attach(&[(wan, XdpMode::Native), (lan, XdpMode::Native)]);
        assert!(
            matches!(
                refused,
                Err(hawser_replication_bpf::AttachError::Pin { .. })
            ),
            "{refused:?}"
        );
        assert_eq!(
            (xdp("wan"), xdp("lan"), names(pins)),
            (None, None, vec![blocked])
        );
    });
}

#[test]
fn attachments_to_other_interfaces_are_released() {
    with_devices("others", |pins, devices| {
        load_filled(pins)
            .attach(&devices.map(|device| (device, XdpMode::Native)))
            .unwrap();
        let [wan, lan] = devices;
        let mut second = load_filled(pins);
        second.attach(&[(wan, XdpMode::Native)]).unwrap();
        assert_eq!(second.release_others().unwrap(), [lan]);
        assert_eq!((xdp("wan").as_deref(), xdp("lan")), (Some("xdp"), None));
        assert!(!pins.join(format!("link-{lan}")).exists());
    });
}

#[test]
fn tables_of_another_layout_are_replaced() {
    with_devices("layout", |pins, [device, _]| {
        load_filled(pins)
            .attach(&[(device, XdpMode::Native)])
            .unwrap();
        let tables = pins.join(
            names(pins)
                .into_iter()
                .find(|name| name.starts_with("tables"))
                .unwrap(),
        );
        // A window of another size; the number of tables stays the same.
        std::fs::remove_file(tables.join("windows")).unwrap();
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>()
                as libbpf_rs::libbpf_sys::size_t,
            ..Default::default()
        };
        let mut other =
            MapHandle::create(MapType::Array, Some("windows"), 4, 64, 1024, &options).unwrap();
        other.pin(tables.join("windows")).unwrap();
        let before = names(&tables);

        let mut second = load_filled(pins);
        assert_eq!(second.replaced_tables(), ["windows"]);
        assert_eq!(second.run(&frame(1), 1).unwrap().action, XDP_PASS);
        second.attach(&[(device, XdpMode::Native)]).unwrap();
        assert_eq!(
            (names(&tables), xdp("wan").as_deref()),
            (before, Some("xdp"))
        );
        drop(second);
        let third = load_filled(pins);
        assert_eq!(third.replaced_tables(), [""; 0]);
        assert_eq!(
            third.run(&frame(1), 1).unwrap().action,
            XDP_DROP,
            "the new window was preserved"
        );
    });
}

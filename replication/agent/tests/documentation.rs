//! The examples are valid and fit each other, and every counted reason is documented.

use hawser_agent::{Config, generate_key};
use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

#[test]
fn the_examples_are_two_ends_of_the_same_paths() {
    let folder = tempfile::tempdir().unwrap();
    generate_key(&folder.path().join("pair.key")).unwrap();
    let [ingress, egress] = ["ingress.toml", "egress.toml"].map(|name| {
        let file = folder.path().join(name);
        fs::write(&file, read(&format!("examples/{name}"))).unwrap();
        Config::read(&file).unwrap()
    });
    for (path, here) in &ingress.paths {
        let there = &egress.paths[path];
        assert_eq!(
            (here.local, Some(here.remote)),
            (Some(there.remote), there.local),
            "{path}"
        );
    }
    let [out, back] =
        [&ingress, &egress].map(|node| node.flows.send.values().next().unwrap().key.clone());
    assert!(
        out != back,
        "what one node sends is not accepted when it is sent back to it"
    );
    for (from, to) in [(&ingress, &egress), (&egress, &ingress)] {
        for sent in from.flows.send.values() {
            let (slot, key, _) = sent.key.as_ref().unwrap();
            assert!(
                to.flows.receive[&sent.label].slots[slot.index()].as_ref() == Some(key),
                "{}",
                sent.label
            );
        }
    }
}

#[test]
fn every_reason_is_explained() {
    let page = read("../../docs/agent.md")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    for reason in hawser_replication_bpf::REASONS {
        let row = format!("| `{}` | {} |", reason.name, reason.help);
        assert!(page.contains(&row), "docs/agent.md lacks: {row}");
    }
}

#[test]
fn the_controlled_examples_are_two_ends_of_the_same_paths() {
    let folder = tempfile::tempdir().unwrap();
    let [ingress, egress] = ["controlled-ingress.toml", "controlled-egress.toml"].map(|name| {
        let file = folder.path().join(name);
        fs::write(&file, read(&format!("examples/{name}"))).unwrap();
        Config::read(&file).unwrap()
    });
    for (path, here) in &ingress.paths {
        let there = &egress.paths[path];
        assert_eq!(
            (here.local, Some(here.remote)),
            (Some(there.remote), there.local),
            "{path}"
        );
        assert_eq!(
            (here.peer.as_deref(), there.peer.as_deref()),
            (Some("edge-2"), Some("edge-1"))
        );
    }
    assert!(ingress.controller.unwrap().signals.is_some());
}

#[test]
fn the_guides_two_machines_are_two_ends_of_the_same_paths() {
    let folder = tempfile::tempdir().unwrap();
    generate_key(&folder.path().join("pair.key")).unwrap();
    let [publisher, viewer] = ["publisher.toml", "viewer.toml"].map(|name| {
        let file = folder.path().join(name);
        fs::write(&file, read(&format!("../../docs/two-machines/{name}"))).unwrap();
        Config::read(&file).unwrap()
    });
    for (path, here) in &publisher.paths {
        let there = &viewer.paths[path];
        assert_eq!(
            (here.local, Some(here.remote)),
            (Some(there.remote), there.local),
            "{path}"
        );
    }
    for (from, to) in [(&publisher, &viewer), (&viewer, &publisher)] {
        let (here, there) = (from.device.as_ref().unwrap(), to.device.as_ref().unwrap());
        let [route] = here.routes.as_slice() else {
            panic!("{here:?}")
        };
        assert_eq!(
            (route.destination.address(), route.fallback.len()),
            (there.addresses[0], 2)
        );
        assert_eq!(from.local, [here.name.as_str()]);
        assert!(from.flows.send_selectors.contains_key(&route.destination));
    }
}

//! The pages of the guide, typed to the letter on machines that are network namespaces. The
//! installation and services need whole machines: see `packaging/machine`.

mod machine;
mod page;

use hawser_testbed::topology::{Lab, Topology, name_uplinks};
use machine::{Machine, add_program};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The networks of the guide's machines: the interface, and the first three bytes of the addresses.
const NETWORKS: [(&str, &str); 3] = [
    ("eth0", "192.0.2"),
    ("wlan0", "198.51.100"),
    ("wwan0", "100.64.0"),
];

/// Two machines, and the networks between them.
struct Scene {
    machines: [Machine; 2],
    lab: Lab,
    homes: TempDir,
}

impl Scene {
    /// Makes machines of the given names. The first one has the addresses that end with 1. `change`
    /// changes the package's example of a machine's file.
    fn new(names: [&'static str; 2], networks: usize, change: impl Fn(String) -> String) -> Self {
        let lab = Topology::with_paths(networks).build().unwrap();
        lab.paths()
            .for_each(|path| lab.bridge_for_xdp(path).unwrap());
        let homes = tempfile::tempdir().unwrap();
        let documents = homes.path().join("documents");
        write_examples(&documents.join("examples"), change);
        // There is no SSH between these machines.
        add_program(
            homes.path(),
            "scp",
            &format!(
                "for home in {}/*/; do case $home in $PWD/ | */programs/ | */documents/) ;; *) to=$home ;; esac; done\n\
                 while [ $# -gt 1 ]; do cp \"$1\" $to; shift; done",
                homes.path().display()
            ),
        );
        let sides = [(lab.ingress(), 1), (lab.egress(), 2)];
        let start = |(name, (namespace, host))| {
            name_uplinks(namespace, &NETWORKS[..networks], host).unwrap();
            Machine::start(name, namespace, homes.path(), &documents)
        };
        let [first, second] = names;
        let machines = [(first, sides[0]), (second, sides[1])].map(start);
        Scene {
            machines,
            lab,
            homes,
        }
    }

    /// Does what a page of the guide says, in its order.
    fn follow(&mut self, page: &str) {
        let page = fs::read_to_string(root().join("docs/guide").join(page)).unwrap();
        let names = [self.machines[0].name, self.machines[1].name];
        for block in page::blocks(&page, &names) {
            for machine in &mut self.machines {
                if block.machines.iter().any(|name| name == machine.name) {
                    machine.follow(&block);
                }
            }
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn write_examples(directory: &Path, change: impl Fn(String) -> String) {
    fs::create_dir_all(directory).unwrap();
    for file in ["publisher.toml", "viewer.toml"] {
        let text = fs::read_to_string(root().join("docs/two-machines").join(file)).unwrap();
        fs::write(directory.join(file), change(text)).unwrap();
    }
}

fn ten_minutes(change: impl Fn(String) -> String) {
    let mut scene = Scene::new(["publisher", "viewer"], 2, change);
    scene.follow("ten-minutes.md");
    let picture = fs::read(scene.homes.path().join("viewer/now.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG"), "a picture of the stream");
}

#[test]
fn the_ten_minute_start_works_as_written() {
    ten_minutes(|text| text);
}

#[test]
fn the_ten_minute_start_works_in_generic_mode() {
    ten_minutes(|text| text.replace("[node]\n", "[node]\ngeneric_xdp = true\n"));
}

#[test]
fn the_ten_minute_start_works_in_native_mode() {
    ten_minutes(|text| text.replace("[node]\n", "[node]\ngeneric_xdp = false\n"));
}

#[test]
fn the_controllers_page_works_as_written() {
    let unchanged = |text| text;
    Scene::new(["publisher", "viewer"], 2, unchanged).follow("controller.md");
}

#[test]
fn the_vehicles_page_works_as_written() {
    let mut scene = Scene::new(["car", "pop"], 3, |text| text);
    let server = scene.lab.egress();
    server.ip("address add 203.0.113.1/32 dev lo").unwrap();
    for (metric, (interface, network)) in (100..).zip(NETWORKS) {
        let route = format!("route add default via {network}.2 dev {interface} metric {metric}");
        scene.lab.ingress().ip(&route).unwrap();
    }
    scene.follow("vehicle.md");
}

#[test]
fn the_relays_page_works_as_written() {
    let unchanged = |text| text;
    Scene::new(["camera", "relay"], 2, unchanged).follow("viewers.md");
}

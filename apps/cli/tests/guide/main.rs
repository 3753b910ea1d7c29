//! The pages of the guide, typed to the letter on machines that are network namespaces. The
//! installation and services need whole machines: see `packaging/machine`.

mod machine;
mod page;

use hawser_testbed::topology::{Topology, network_egress, network_ingress};
use machine::{Machine, add_program};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Types the ten-minute start. `change` changes what the package has of each machine's file.
fn ten_minutes(change: impl Fn(String) -> String) {
    let page = fs::read_to_string(root().join("docs/guide/ten-minutes.md")).unwrap();
    let lab = Topology::with_paths(2).build().unwrap();
    for path in lab.paths() {
        lab.bridge(path).unwrap();
        // To receive frames that XDP redirects, as devices do.
        for device in [network_ingress(path), network_egress(path)] {
            lab.network().offloads(&device, &[("gro", true)]).unwrap();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let documents = directory.path().join("documents/examples");
    fs::create_dir_all(&documents).unwrap();
    for file in ["publisher.toml", "viewer.toml"] {
        let text = fs::read_to_string(root().join("docs/two-machines").join(file)).unwrap();
        fs::write(documents.join(file), change(text)).unwrap();
    }
    // There is no SSH between these machines.
    let homes = directory.path();
    add_program(
        homes,
        "scp",
        &format!("cp \"$1\" {}", homes.join("viewer").display()),
    );
    let documents = documents.parent().unwrap();
    let mut machines = [("publisher", lab.ingress(), 1), ("viewer", lab.egress(), 2)].map(
        |(name, namespace, host)| {
            for (number, (uplink, network)) in
                (1..).zip([("eth0", "192.0.2"), ("wlan0", "198.51.100")])
            {
                let batch = format!(
                    "link set path{number} down\naddress flush dev path{number}\n\
                     link set path{number} name {uplink}\nlink set {uplink} up\n\
                     address add {network}.{host}/24 dev {uplink}"
                );
                namespace.ip(&batch).unwrap();
            }
            // The default of distributions.
            namespace
                .sysctl("net.ipv4.conf.all.rp_filter", "2")
                .unwrap();
            Machine::start(name, namespace, homes, documents)
        },
    );
    for block in page::blocks(&page, &["publisher", "viewer"]) {
        for machine in &mut machines {
            if block.machines.iter().any(|name| name == machine.name) {
                machine.follow(&block);
            }
        }
    }
    let picture = fs::read(directory.path().join("viewer/now.png")).unwrap();
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

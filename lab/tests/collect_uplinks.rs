//! `hawser lab collect` while uplinks come and go, in namespaces.

mod ends;

use ends::{Collection, End, address};
use hawser_testbed::netns::Namespace;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A car with two uplinks, `wwan0` and `wwan1`, to a cloud with the addresses 10.7.0.1 and 10.7.1.1. The route to
/// 10.9.0.1 in the cloud leads over both.
struct Network {
    car: Namespace,
    cloud: Namespace,
}

impl Network {
    fn create(name: &str) -> Network {
        let make = |role: &str| {
            let id = std::process::id();
            Namespace::create(format!("hawser-collect-{name}-{role}-{id}")).unwrap()
        };
        let network = Network {
            car: make("car"),
            cloud: make("cloud"),
        };
        network.cloud.ip("addr add 10.9.0.1/32 dev lo").unwrap();
        for uplink in [0, 1] {
            network
                .car
                .ip(&format!(
                    "link add wwan{uplink} type veth peer name wan{uplink} netns {}\nlink set wwan{uplink} up",
                    network.cloud.name()
                ))
                .unwrap();
            network
                .cloud
                .ip(&format!(
                    "addr add 10.7.{uplink}.1/24 dev wan{uplink}\nlink set wan{uplink} up"
                ))
                .unwrap();
            network.attach(uplink, 2);
        }
        network
    }

    /// Gives an uplink the address 10.7.`uplink`.`host`.
    fn attach(&self, uplink: u8, host: u8) {
        self.car
            .ip(&format!(
                "addr add 10.7.{uplink}.{host}/24 dev wwan{uplink}\n\
                 route add 10.9.0.1 via 10.7.{uplink}.1 dev wwan{uplink} metric {}",
                100 + u32::from(uplink)
            ))
            .unwrap();
    }

    fn detach(&self, uplink: u8, host: u8) {
        self.car
            .ip(&format!(
                "addr del 10.7.{uplink}.{host}/24 dev wwan{uplink}"
            ))
            .unwrap();
    }

    fn start(namespace: &Namespace, mut command: Command) -> End {
        namespace.confine(&mut command).unwrap();
        End::start(command)
    }

    fn receiver(&self, collection: &Collection) -> End {
        let receive = collection.receive("10.9.0.1:0", &collection.path("key"));
        Network::start(&self.cloud, receive)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.car, &self.cloud] {
            let _ = namespace.kill_processes();
            let _ = namespace.delete();
        }
    }
}

#[test]
fn an_unreachable_uplink_is_named_before_data_is_sent() {
    let network = Network::create("silent");
    network.cloud.ip("link set wan1 down").unwrap();
    let collection = Collection::new();
    let receiver = network.receiver(&collection);
    let send = collection.send(&address(&receiver), 1, &["wwan0=2", "wwan1=2"]);
    let (status, said) = Network::start(&network.car, send).wait();
    assert!(!status.success());
    assert!(said.contains("no answer over wwan1:"), "{said}");
    assert!(!said.contains("collecting"), "{said}");
}

#[test]
fn a_modem_with_another_address_is_used_again() {
    let network = Network::create("attach");
    let collection = Collection::new();
    let receiver = network.receiver(&collection);
    let send = collection.send(&address(&receiver), 600, &["wwan0=2", "wwan1=2"]);
    let sender = Network::start(&network.car, send);
    receiver.wait_for("collecting");
    network.detach(1, 2);
    sender.wait_for("wwan1 is not there");
    thread::sleep(Duration::from_secs(1));
    network.attach(1, 3);
    sender.wait_for("wwan1 is there again");
    thread::sleep(Duration::from_secs(1));
    sender.signal("INT");
    let (status, said) = sender.wait();
    assert!(status.success(), "{said}");
    assert!(receiver.wait().0.success());

    let [kept, gone] = ["0", "1"].map(|path| collection.rates("drive-000.csv", path));
    // In a pause of a busy machine both are empty.
    let steps: Vec<_> = kept.into_iter().zip(gone).collect();
    let is_away = |(kept, gone): &(f64, f64)| *kept > 0.0 && *gone == 0.0;
    let away = steps.iter().filter(|step| is_away(step)).count();
    assert!(away >= 5, "{steps:?}");
    let began = steps.iter().position(is_away).unwrap();
    let again = steps[began + 5..].iter().any(|(_, gone)| *gone > 0.0);
    assert!(again, "{steps:?}");
    let notes = collection.read("drive-000.txt");
    let line = notes.lines().find(|line| line.starts_with("uplink 1"));
    assert!(line.unwrap().contains("s without the interface"), "{notes}");
    let line = notes.lines().find(|line| line.starts_with("uplink 0"));
    assert!(!line.unwrap().contains("without the interface"), "{notes}");
}

#[test]
fn an_interface_that_is_removed_does_not_end_the_collection() {
    let network = Network::create("remove");
    let collection = Collection::new();
    let receiver = network.receiver(&collection);
    let send = collection.send(&address(&receiver), 4, &["wwan0=2", "wwan1=2"]);
    let sender = Network::start(&network.car, send);
    receiver.wait_for("collecting");
    network.car.ip("link del wwan1").unwrap();
    sender.wait_for("wwan1 is not there");
    let (status, said) = sender.wait();
    assert!(status.success(), "{said}");
    assert!(receiver.wait().0.success());
    let kept = collection.rates("drive-000.csv", "0");
    assert_eq!(kept.len(), 40);
    // A busy machine pauses.
    let sent = kept.iter().filter(|rate| **rate > 0.0).count();
    assert!(sent >= 10, "{kept:?}");
    assert!(
        collection
            .read("drive-000.txt")
            .contains("without the interface")
    );
}

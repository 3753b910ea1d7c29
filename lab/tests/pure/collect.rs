//! `hawser lab collect` over the loopback interface.

use crate::ends::{Collection, End, address};
use hawser_netem::{Drive, Opportunities};
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const LOOPBACK: &str = "127.0.0.1:0";

fn receiver(collection: &Collection) -> End {
    End::start(collection.receive(LOOPBACK, &collection.path("key")))
}

/// Starts a sending end of 2 Mb/s that goes on for long; returns when a second of data has been sent.
fn collect_for_a_second(collection: &Collection, to: &str, receiver: &End) -> End {
    let sender = End::start(collection.send(to, 600, &["lo=2"]));
    receiver.wait_for("collecting");
    thread::sleep(Duration::from_secs(1));
    sender
}

/// Returns whether a rate is that of a sending end, which is slower on a busy machine.
fn is_at_most(sent: f64, mean: f64) -> bool {
    mean > 0.0 && mean < 1.2 * sent
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

#[test]
fn what_arrives_becomes_a_drive_and_a_trace_for_each_uplink() {
    let collection = Collection::new();
    let receiver = receiver(&collection);
    let send = collection.send(&address(&receiver), 2, &["lo=6", "lo=3"]);
    let (status, said) = End::start(send).wait();
    assert!(status.success(), "{said}");
    // The sending end has waited for the drive.
    let text = collection.read("drive-000.csv");
    assert!(receiver.wait().0.success());

    let drive = Drive::parse(&text).unwrap();
    assert_eq!(drive.paths().collect::<Vec<_>>(), [0, 1]);
    for (path, sent) in [("0", 6.0), ("1", 3.0)] {
        let rates = collection.rates("drive-000.csv", path);
        assert_eq!(rates.len(), 20, "{text}");
        assert!(is_at_most(sent, mean(&rates)), "{text}");
        let trace = collection.read(&format!("drive-000.{path}.up"));
        assert!(Opportunities::parse(&trace).is_ok());
        assert_eq!(trace.lines().last(), Some("2000"));
    }
    assert!(
        collection
            .read("drive-000.txt")
            .contains("uplink 1: round trip ")
    );
}

#[test]
fn ends_with_different_keys_do_not_understand_each_other() {
    let collection = Collection::new();
    let other = collection.path("other");
    hawser_io::key_file::generate_media(&other).unwrap();
    let receiver = End::start(collection.receive(LOOPBACK, &other));
    let send = collection.send(&address(&receiver), 1, &["lo=1"]);
    let (status, said) = End::start(send).wait();
    assert!(!status.success());
    assert!(said.contains("no answer over lo"), "{said}");
    // No data was sent.
    assert!(!said.contains("collecting"), "{said}");
    receiver.signal("TERM");
    assert!(!receiver.wait().0.success());
    assert_eq!(fs::read_dir(collection.path("out")).unwrap().count(), 0);
}

#[test]
fn a_missing_uplink_is_named_before_data_is_sent() {
    let collection = Collection::new();
    let receiver = receiver(&collection);
    let send = collection.send(&address(&receiver), 1, &["lo=1", "missing0=1"]);
    let (status, said) = End::start(send).wait();
    assert!(!status.success());
    assert!(said.contains("cannot use the interface missing0"), "{said}");
    assert!(!said.contains("collecting"), "{said}");
}

#[test]
fn a_directory_that_cannot_be_written_to_is_refused_at_once() {
    let collection = Collection::new();
    fs::write(collection.path("out"), "a file").unwrap();
    let (status, said) = receiver(&collection).wait();
    assert!(!status.success());
    assert!(said.contains("cannot create"), "{said}");
    assert!(!said.contains("waiting for"), "{said}");
}

#[test]
fn an_interrupted_receiver_writes_and_the_sender_fails() {
    let collection = Collection::new();
    let receiver = receiver(&collection);
    let sender = collect_for_a_second(&collection, &address(&receiver), &receiver);
    receiver.signal("INT");
    let (status, said) = receiver.wait();
    assert!(status.success(), "{said}");
    let rates = collection.rates("drive-000.csv", "0");
    assert!(rates.len() >= 5, "{rates:?}");
    assert!(is_at_most(2.0, mean(&rates)), "{rates:?}");

    let (status, said) = sender.wait();
    assert!(!status.success());
    assert!(said.contains("no answer over any uplink"), "{said}");
}

#[test]
fn an_interrupted_sender_leaves_the_drive_so_far() {
    let collection = Collection::new();
    let receiver = receiver(&collection);
    let sender = collect_for_a_second(&collection, &address(&receiver), &receiver);
    sender.signal("INT");
    let (status, said) = sender.wait();
    assert!(status.success(), "{said}");
    assert!(receiver.wait().0.success());
    let rates = collection.rates("drive-000.csv", "0");
    assert!(rates.len() >= 5, "{rates:?}");
}

#[test]
fn a_sender_that_is_started_again_gets_a_drive_of_its_own() {
    let collection = Collection::new();
    let receiver = receiver(&collection);
    let to = address(&receiver);
    let first = collect_for_a_second(&collection, &to, &receiver);
    first.signal("KILL");
    let (status, said) = End::start(collection.send(&to, 1, &["lo=4"])).wait();
    assert!(status.success(), "{said}");
    receiver.wait_for("started again");
    assert!(receiver.wait().0.success());
    let mean_of = |name| mean(&collection.rates(name, "0"));
    assert!(is_at_most(2.0, mean_of("drive-000.csv")));
    assert!(is_at_most(4.0, mean_of("drive-001.csv")));
    assert_eq!(collection.rates("drive-001.csv", "0").len(), 10);
}

/// The receiving end is stopped until its buffer has been full, which has the system's limit without CAP_NET_ADMIN.
#[test]
fn a_drive_with_losses_at_the_receiver_is_marked() {
    let collection = Collection::new();
    let receive = collection.receive(LOOPBACK, &collection.path("key"));
    let receiver = End::start(without_net_admin(receive));
    let to = address(&receiver);
    let sender = End::start(collection.send(&to, 600, &["lo=100"]));
    receiver.wait_for("collecting");
    receiver.signal("STOP");
    let port: u16 = to.rsplit(':').next().unwrap().parse().unwrap();
    let stopped = Instant::now();
    while drops(port) == 0 {
        assert!(
            stopped.elapsed() < Duration::from_secs(12),
            "the buffer is never full"
        );
        thread::sleep(Duration::from_millis(10));
    }
    receiver.signal("CONT");
    thread::sleep(Duration::from_secs(1));
    sender.signal("INT");
    let (status, said) = sender.wait();
    assert!(status.success(), "{said}");
    let (_, said) = receiver.wait();
    assert!(said.contains("NOT VALID: this machine lost"), "{said}");
    let notes = collection.read("drive-000.txt");
    assert!(notes.contains("NOT VALID: this machine lost"), "{notes}");
}

/// Returns a command without the capability, if this process has it.
fn without_net_admin(command: Command) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return command;
    }
    let mut confined = Command::new("setpriv");
    confined.args(["--bounding-set", "-net_admin", "--"]);
    confined.arg(command.get_program()).args(command.get_args());
    confined
}

/// Returns the packets that the kernel dropped at the UDP socket on a port.
fn drops(port: u16) -> u64 {
    let sockets = fs::read_to_string("/proc/net/udp").unwrap();
    let own = format!("0100007F:{port:04X}");
    let mut rows = sockets.lines().map(|line| line.split_whitespace());
    let row = rows.find(|row| row.clone().nth(1) == Some(&own));
    row.unwrap().next_back().unwrap().parse().unwrap()
}

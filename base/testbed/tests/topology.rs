//! Labs are built, carry traffic, and are removed completely however their process exits.

use hawser_io::sockopt::{MtuDiscovery, set_mtu_discovery};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::{Claim, Lab, Stop, Topology, clear_abandoned};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

#[test]
fn both_ip_versions_cross_the_default_path() {
    let lab = Topology::default().build().unwrap();
    lab.bridge_paths().unwrap();
    assert_eq!(
        echo(&lab, lab.viewer_v4().into()),
        IpAddr::from(lab.source_v4())
    );
    assert_eq!(
        echo(&lab, lab.viewer_v6().into()),
        IpAddr::from(lab.source_v6())
    );
}

#[test]
fn a_packet_too_large_to_encapsulate_gets_the_routes_mtu() {
    let lab = Topology {
        paths: 1,
        route_mtu: 1400,
        ..Topology::default()
    }
    .build()
    .unwrap();
    lab.bridge_paths().unwrap();
    for (viewer, headers) in [
        (IpAddr::from(lab.viewer_v4()), 28),
        (lab.viewer_v6().into(), 48),
    ] {
        let socket = lab
            .source()
            .run(|| UdpSocket::bind(any(viewer)))
            .unwrap()
            .unwrap();
        set_mtu_discovery(&socket, viewer.is_ipv6(), MtuDiscovery::Do).unwrap();
        socket.connect((viewer, 9)).unwrap();
        let too_large = vec![0; 1401 - headers];
        // The first packet is sent. The edge's ICMP reply then sets the path's MTU, and the socket
        // rejects further ones.
        let refused = || {
            socket
                .send(&too_large)
                .is_err_and(|error| error.raw_os_error() == Some(nix::libc::EMSGSIZE))
        };
        wait_until("the edge reports its MTU", refused);
        // A send first returns the errors that the network reported for earlier packets.
        wait_until("what fits is sent", || socket.send(&too_large[1..]).is_ok());
    }
}

#[test]
fn two_labs_at_once_do_not_meet() {
    let labs = [(); 2].map(|()| {
        Topology {
            paths: 8,
            ..Topology::default()
        }
        .build()
        .unwrap()
    });
    labs[0].bridge_paths().unwrap();
    let viewer = IpAddr::from(labs[0].viewer_v4());
    echo(&labs[0], viewer);
    let listener = labs[1]
        .viewer()
        .run(|| TcpListener::bind((viewer, 0)))
        .unwrap()
        .unwrap();
    let address = listener.local_addr().unwrap();
    let refused = labs[0]
        .source()
        .run(|| TcpStream::connect(address).unwrap_err())
        .unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_controller_reaches_both_edges_past_the_paths() {
    let lab = Topology {
        control: true,
        ..Topology::default()
    }
    .build()
    .unwrap();
    let links = lab.addressing().control.as_ref().unwrap();
    for (link, edge) in links.iter().zip([lab.ingress(), lab.egress()]) {
        let controller = lab.control().unwrap();
        let listener = controller
            .run(|| TcpListener::bind((link.near.v4, 0)))
            .unwrap()
            .unwrap();
        let address = listener.local_addr().unwrap();
        let node = edge.run(|| TcpStream::connect(address)).unwrap().unwrap();
        assert_eq!(node.local_addr().unwrap().ip(), IpAddr::from(link.far.v4));
    }
}

#[test]
fn a_dropped_lab_leaves_nothing() {
    let lab = Topology {
        control: true,
        multihomed: true,
        ..Topology::default()
    }
    .build()
    .unwrap();
    let id = lab.id().to_owned();
    let mut orphan = lab
        .viewer()
        .command("sleep")
        .unwrap()
        .arg("1000")
        .spawn()
        .unwrap();
    let mut child = Process::spawn(lab.source(), sleep()).unwrap();
    fs::create_dir_all(lab.pins("ingress")).unwrap();
    drop(lab);
    assert_eq!(
        orphan.wait().unwrap().signal(),
        Some(Signal::SIGKILL as i32)
    );
    assert_eq!(
        child.ended().unwrap().unwrap().signal(),
        Some(Signal::SIGKILL as i32)
    );
    assert_nothing_left(&id);
}

#[test]
fn a_child_is_asked_before_it_is_killed() {
    let lab = Topology {
        paths: 1,
        ..Topology::default()
    }
    .build()
    .unwrap();
    let obedient = Process::spawn(lab.source(), sleep()).unwrap();
    let status = obedient.stop(Duration::from_secs(60)).unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));

    let mut stubborn = Command::new("sh");
    stubborn
        .args([
            "-c",
            "trap '' TERM; echo ready; while :; do sleep 1000; done",
        ])
        .stdout(Stdio::piped());
    let mut stubborn = Process::spawn(lab.source(), stubborn).unwrap();
    let ready = BufReader::new(stubborn.stdout().unwrap())
        .lines()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(ready, "ready");
    let status = stubborn.stop(Duration::from_millis(1)).unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn what_a_killed_lab_left_is_cleared_by_the_next() {
    hold_a_lab_if_asked();
    let mut holder = start_holder("what_a_killed_lab_left_is_cleared_by_the_next");
    let Held { id, child, orphan } = read_held(&mut holder);
    // Other labs that are built meanwhile wait for this lock, and would clear it.
    let registry = fs::File::open("/run/hawser/lab").unwrap();
    registry.lock().unwrap();
    kill(pid(holder.id()), Signal::SIGKILL).unwrap();
    holder.wait().unwrap();
    wait_until("the child dies with its parent", || !is_running(child));
    assert!(is_running(orphan));
    assert_eq!(Namespace::named(&format!("hawser-{id}-")).len(), 5);
    drop(registry);
    let next = Topology {
        paths: 1,
        ..Topology::default()
    }
    .build()
    .unwrap();
    assert!(!is_running(orphan));
    assert_nothing_left(&id);
    assert_eq!(Namespace::named(&format!("hawser-{}-", next.id())).len(), 5);
}

#[test]
fn an_interrupted_lab_takes_itself_down() {
    hold_a_lab_if_asked();
    let mut holder = start_holder("an_interrupted_lab_takes_itself_down");
    let Held { id, child, orphan } = read_held(&mut holder);
    clear_abandoned().unwrap();
    assert!(
        is_running(orphan),
        "a lab whose owner runs must not be removed"
    );
    kill(pid(holder.id()), Signal::SIGINT).unwrap();
    assert!(holder.wait().unwrap().success());
    assert!(!is_running(child) && !is_running(orphan));
    assert_nothing_left(&id);
}

#[test]
fn what_is_claimed_is_removed_with_the_claim_only() {
    let claim = Claim::new().unwrap();
    let namespace = claim.namespace("bench").unwrap();
    let mut process = namespace
        .command("sleep")
        .unwrap()
        .arg("1000")
        .spawn()
        .unwrap();
    let prefix = format!("hawser-{}-", claim.id());
    clear_abandoned().unwrap();
    assert_eq!(Namespace::named(&prefix), [namespace]);
    assert!(process.try_wait().unwrap().is_none());

    let id = claim.id().to_owned();
    drop(claim);

    assert_eq!(
        process.wait().unwrap().signal(),
        Some(Signal::SIGKILL as i32)
    );
    assert_nothing_left(&id);
}

const HOLD: &str = "HAWSER_TEST_HOLDS_A_LAB";

/// A lab in another process, with two processes inside: one is killed with its parent, the other is
/// not.
struct Held {
    id: String,
    child: u32,
    orphan: u32,
}

/// Runs this test program again, as a process that can be killed.
fn start_holder(test: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(HOLD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn hold_a_lab_if_asked() {
    if env::var_os(HOLD).is_none() {
        return;
    }
    let stop = Stop::on_signals().unwrap();
    let lab = Topology {
        paths: 2,
        ..Topology::default()
    }
    .build()
    .unwrap();
    fs::create_dir_all(lab.pins("egress")).unwrap();
    let child = Process::spawn(lab.viewer(), sleep()).unwrap();
    let orphan = lab
        .ingress()
        .command("sleep")
        .unwrap()
        .arg("1000")
        .spawn()
        .unwrap();
    println!("\nholding {} {} {}", lab.id(), child.id(), orphan.id());
    assert!(
        stop.sleep(Duration::from_secs(60)),
        "the holder was not stopped"
    );
    drop(lab);
    process::exit(0);
}

fn read_held(holder: &mut Child) -> Held {
    let mut lines = BufReader::new(holder.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let line = lines
        .find(|line| line.starts_with("holding "))
        .expect("the holder prints the lab's id");
    let words: Vec<&str> = line.split(' ').collect();
    Held {
        id: words[1].to_owned(),
        child: words[2].parse().unwrap(),
        orphan: words[3].parse().unwrap(),
    }
}

fn assert_nothing_left(id: &str) {
    assert_eq!(Namespace::named(&format!("hawser-{id}-")), []);
    assert!(!Path::new("/run/hawser/lab").join(id).exists());
    let pins = fs::read_dir("/sys/fs/bpf/hawser").unwrap();
    let names = pins.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with(id)).count(), 0);
}

/// Sends a line to the viewer and back over TCP. Returns the source's address as seen by the
/// viewer.
fn echo(lab: &Lab, viewer: IpAddr) -> IpAddr {
    let listener = lab
        .viewer()
        .run(|| TcpListener::bind((viewer, 0)))
        .unwrap()
        .unwrap();
    let address = listener.local_addr().unwrap();
    let mut near = lab
        .source()
        .run(|| TcpStream::connect(address))
        .unwrap()
        .unwrap();
    let (mut far, peer) = listener.accept().unwrap();
    let mut line = [0; 5];
    near.write_all(b"there").unwrap();
    far.read_exact(&mut line).unwrap();
    far.write_all(&line).unwrap();
    near.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"there");
    peer.ip()
}

fn any(like: IpAddr) -> (IpAddr, u16) {
    let unspecified = match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    (unspecified, 0)
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

/// Returns whether a process runs. A zombie does not, even if its parent has not waited for it.
fn is_running(process: u32) -> bool {
    fs::read_link(format!("/proc/{process}/exe")).is_ok()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

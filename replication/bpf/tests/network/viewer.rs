//! A viewer's requests over real sockets, as the watcher records them.

use crate::support::*;
use hawser_replication_bpf::{Ports, Request, Rule, Watcher};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::wait;
use hawser_units::Instant;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use nix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const REQUEST_BYTES: usize = 60;
const REQUESTS: usize = 20;

fn now() -> Instant {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    Instant::from_nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Runs `test` with a loopback device that is watched for requests to a port.
fn watching(name: &str, test: impl FnOnce(&mut Watcher, &dyn Fn(&Watcher, u16)) + Send) {
    let namespace =
        Namespace::create(format!("hawser-test-{}-{name}", std::process::id())).unwrap();
    let result = namespace.ip("link set lo up\n").and_then(|()| {
        namespace.run(|| {
            catch_unwind(AssertUnwindSafe(|| {
                let mut watcher = Watcher::load().unwrap();
                watcher.attach(1).unwrap();
                watcher.set_flow(flow(7), Some(20..=200)).unwrap();
                test(&mut watcher, &|watcher, port| {
                    let ports = Ports {
                        source: 0..=0xffff,
                        destination: port..=port,
                    };
                    let rule = Rule {
                        flow: flow(7),
                        protocol: None,
                        ports: Some(ports),
                    };
                    watcher.select(prefix("127.0.0.0/8"), &[rule]).unwrap();
                });
            }))
        })
    });
    namespace.delete().unwrap();
    result.unwrap().unwrap();
}

/// Collects requests until `done` returns true.
fn collect_requests(watcher: &mut Watcher, done: impl Fn(&[Request]) -> bool) -> Vec<Request> {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let mut requests = Vec::new();
    while !done(&requests) {
        assert!(std::time::Instant::now() < deadline, "{requests:?}");
        wait(&[watcher.as_fd()], Some(Duration::from_millis(100))).unwrap();
        watcher.drain(&mut requests);
    }
    requests
}

#[test]
fn a_viewer_that_asks_for_frames_over_tcp() {
    watching("tcp", |watcher, select| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        select(watcher, address.port());
        let begin = now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut source, _) = listener.accept().unwrap();
                let mut request = [0; REQUEST_BYTES];
                while source.read_exact(&mut request).is_ok() {
                    source.write_all(&[7; 10_000]).unwrap();
                }
            });
            let mut viewer = TcpStream::connect(address).unwrap();
            for _ in 0..REQUESTS {
                viewer.write_all(&[1; REQUEST_BYTES]).unwrap();
                viewer.read_exact(&mut [0; 10_000]).unwrap();
            }
            viewer.shutdown(Shutdown::Write).unwrap();
        });
        let recorded = collect_requests(watcher, |requests| {
            requests.last().is_some_and(Request::is_end)
        });
        let end = now();

        let (requests, ends): (Vec<Request>, Vec<Request>) =
            recorded.iter().partition(|request| !request.is_end());
        assert_eq!(requests.len(), REQUESTS, "{recorded:?}");
        assert!(!ends.is_empty());
        for pair in recorded.windows(2) {
            assert!(pair[0].at <= pair[1].at);
        }
        for pair in requests.windows(2) {
            assert_eq!(
                pair[1].sequence,
                pair[0].sequence.wrapping_add(REQUEST_BYTES as u32)
            );
        }
        assert!(
            requests
                .iter()
                .all(|request| usize::from(request.bytes) == REQUEST_BYTES)
        );
        assert!(begin <= recorded[0].at && recorded[recorded.len() - 1].at <= end);
        assert_eq!(watcher.stats(flow(7)).unwrap().requests, REQUESTS as u64);
    });
}

/// The kernel merges datagrams that arrive together: they are one request, with the size of each
/// datagram.
#[test]
fn merged_datagrams_are_one_request() {
    watching("train", |watcher, select| {
        let source = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = source.local_addr().unwrap();
        select(watcher, address.port());
        let viewer = UdpSocket::bind("127.0.0.1:0").unwrap();
        setsockopt(&viewer, UdpGsoSegment, &80).unwrap();
        viewer.send_to(&[1; 4 * 80], address).unwrap();
        viewer.send_to(&[1; 50], address).unwrap();
        let recorded = collect_requests(watcher, |requests| requests.len() >= 2);
        assert_eq!(
            recorded
                .iter()
                .map(|request| request.bytes)
                .collect::<Vec<_>>(),
            [80, 50]
        );
    });
}

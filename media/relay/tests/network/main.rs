//! A publisher, relays and viewers in network namespaces.

#[path = "../../../view/tests/support/clap.rs"]
mod clap;
mod machines;
mod moq;
mod page;
mod process;
mod sound;

use hawser_relay::status::{Counts, Status, Subscriber};
use hawser_testbed::process::Process;
use hawser_view::Summary;
use machines::{FAR, Machines, PUBLISHER, Place, SetOnDrop};
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

fn kill(process: Process) {
    // Without grace it is SIGKILL at once.
    let pid = process.id().to_string();
    let killed = Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
    process.stop(Duration::from_secs(60)).unwrap();
}

fn end(process: Process) {
    let status = process.stop(Duration::from_secs(60)).unwrap();
    assert!(status.success(), "{status}");
}

fn count(counts: &Counts, reason: &str) -> u64 {
    counts.get(reason).copied().unwrap_or_default()
}

/// Checks that a viewer has refused nothing but what came twice or too late, as it does on a busy machine.
fn check_refused(summary: &Summary) {
    for (reason, count) in summary.received.refused.by_reason() {
        let is_late = ["repeated", "too_old"].contains(&reason);
        assert!(count == 0 || is_late, "{summary}");
    }
}

/// Returns the address of the only connected UDP socket of a machine.
fn connected_udp_socket() -> String {
    let listed = Command::new("ss").arg("-Huna").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let connected = listed.lines().find(|line| line.starts_with("ESTAB"));
    let socket = connected.and_then(|line| line.split_whitespace().nth(3));
    socket.unwrap_or_else(|| panic!("{listed}")).to_owned()
}

#[test]
fn viewers_see_every_frame_whenever_they_come() {
    let machines = Machines::create("come", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        let relay = machines.relay(0);
        let first = machines.watch(scope, "first", Place::Near, &stop);
        machines.wait_for_frames("first", 30);
        let late = machines.watch(scope, "late", Place::Near, &stop);
        for viewer in ["first", "late"] {
            machines.wait_for_run(viewer, 60, |_| true);
        }
        stop.store(true, Relaxed);
        for viewer in [first, late] {
            let summary = viewer.join().unwrap();
            println!("{summary}");
            check_refused(&summary);
            assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
        }
        end(relay);
    });
}

#[test]
fn viewers_on_the_machine_of_the_relay_see_every_frame() {
    let machines = Machines::create("own", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        let relay = machines.relay(0);
        let viewers = [("own", Place::Relay), ("near", Place::Near)];
        let viewing = viewers.map(|(name, place)| machines.watch(scope, name, place, &stop));
        for (viewer, _) in viewers {
            machines.wait_for_run(viewer, 60, |_| true);
        }
        stop.store(true, Relaxed);
        for viewer in viewing {
            let summary = viewer.join().unwrap();
            check_refused(&summary);
            assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
        }
        end(relay);
    });
}

#[test]
fn a_killed_relay_serves_again_after_its_restart() {
    let machines = Machines::create("killed", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        let relay = machines.relay(0);
        let viewers = ["one", "two"].map(|viewer| {
            let viewing = machines.watch(scope, viewer, Place::Near, &stop);
            machines.wait_for_frames(viewer, 30);
            viewing
        });
        kill(relay);
        // The kernel stops with the process.
        machines.wait_for_silence("one");
        let relay = machines.relay(0);
        for viewer in ["one", "two"] {
            let again = machines.shown(viewer);
            machines.wait_for_frames(viewer, again + 30);
        }
        stop.store(true, Relaxed);
        for viewer in viewers {
            let summary = viewer.join().unwrap();
            assert!(summary.received.sessions >= 2, "{summary}");
            assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
        }
        end(relay);
    });
}

#[test]
fn a_publisher_that_starts_again_is_seen_again() {
    let machines = Machines::create("again", 1);
    let (stop, stop_publisher) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stops = (SetOnDrop(&stop), SetOnDrop(&stop_publisher));
        let publishing = machines.publish(scope, &stop_publisher);
        let relay = machines.relay(0);
        let viewing = machines.watch(scope, "viewer", Place::Near, &stop);
        machines.wait_for_frames("viewer", 30);
        stop_publisher.store(true, Relaxed);
        publishing.join().unwrap();
        thread::sleep(Duration::from_secs(1));
        let before = machines.shown("viewer");
        machines.publish(scope, &stop);
        machines.wait_for_frames("viewer", before + 30);
        stop.store(true, Relaxed);
        let summary = viewing.join().unwrap();
        assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
        end(relay);
    });
}

#[test]
fn relays_in_a_chain_pass_every_frame_on() {
    let machines = Machines::create("chain", 3);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        let relays = [0, 1, 2].map(|relay| machines.relay(relay));
        let viewing = machines.watch(scope, "viewer", Place::Near, &stop);
        machines.wait_for_run("viewer", 60, |_| true);
        machines.wait_for_status(2, |status| status.broadcasts[0].relays == 3);
        stop.store(true, Relaxed);
        let summary = viewing.join().unwrap();
        println!("{summary}");
        check_refused(&summary);
        relays.into_iter().for_each(end);
    });
}

/// Runs a viewer over each link of the last relay until the near one has had 30 whole frames one after the other and the
/// far one as many frames as given since the relay's status was as it should be. Returns the summary of the far one, and
/// the status.
fn watch_near_and_far(
    machines: &Machines,
    has_small: bool,
    far_frames: usize,
    is_right: impl Fn(&Subscriber, &Subscriber) -> bool,
) -> (Summary, Status) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish_as(scope, 0, &stop, has_small);
        let relay = machines.relay(0);
        let near = machines.watch(scope, "near", Place::Near, &stop);
        let far = machines.watch(scope, "far", Place::Far, &stop);
        let status = machines.wait_for_status(0, |status| {
            let viewers = &status.broadcasts[0].subscribers;
            let far = viewers.iter().find(|viewer| viewer.address.ip() == FAR);
            let near = viewers.iter().find(|viewer| viewer.address.ip() != FAR);
            near.zip(far).is_some_and(|(near, far)| is_right(near, far))
        });
        machines.wait_for_frames("far", machines.shown("far") + far_frames);
        machines.wait_for_run("near", 30, |row| row.is_whole);
        stop.store(true, Relaxed);
        println!("{}", near.join().unwrap());
        let far = far.join().unwrap();
        end(relay);
        (far, status)
    })
}

#[test]
fn a_narrow_path_gets_the_small_encoding() {
    let machines = Machines::create("narrow", 1);
    machines.limit_far("1200kbit");
    let (far, status) = watch_near_and_far(&machines, true, 150, |near, far| {
        (near.encoding, far.encoding) == (0, 1)
    });
    let frames = &far.received.frames;
    assert!(frames.lesser_encoding > 100, "{far}\n{status:#?}");
    assert_eq!(far.decoded.damaged.total(), 0, "{far}");
}

#[test]
fn a_slow_path_delays_and_thins_only_its_own_viewer() {
    let machines = Machines::create("slow", 1);
    // Less than a fifth of what is published.
    machines.limit_far("1500kbit");
    let (far, status) = watch_near_and_far(&machines, false, 120, |_, far| {
        count(&far.objects, "priority") > 0
    });
    assert_eq!(far.decoded.damaged.total(), 0, "{far}");
    let thinned = machines.rows("far");
    let whole = thinned.iter().filter(|row| row.is_whole).count();
    assert!(whole < thinned.len() / 4, "{far}\n{status:#?}");
}

#[test]
fn a_path_below_the_base_gets_fewer_points_of_each_frame() {
    let machines = Machines::create("thin", 1);
    // Half of the base.
    machines.limit_far("1mbit");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish_as(scope, 0, &stop, false);
        let relay = machines.relay(0);
        let far = machines.watch(scope, "far", Place::Far, &stop);
        // The base has one of four points.
        machines.wait_for_run("far", 30, |row| row.points < 1500);
        let status = machines.wait_for_status(0, |status| {
            let viewers = status.broadcasts[0].subscribers.iter();
            let thinned = viewers.map(|viewer| count(&viewer.not_sent, "thinned"));
            thinned.sum::<u64>() > 100
        });
        stop.store(true, Relaxed);
        let far = far.join().unwrap();
        println!("{far}\n{status:#?}");
        assert_eq!(far.decoded.damaged.total(), 0, "{far}");
        end(relay);
    });
}

#[test]
fn in_a_room_each_sees_all_others() {
    const PEOPLE: usize = 3;
    let machines = Machines::create("room", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for person in 0..PEOPLE {
            machines.publish_as(scope, person, &stop, false);
        }
        let relay = machines.relay_room(PEOPLE);
        let mut viewers = Vec::new();
        for viewer in 0..PEOPLE {
            for person in (0..PEOPLE).filter(|person| *person != viewer) {
                let name = format!("{viewer}-of-{person}");
                let viewing = machines.watch_person(scope, &name, person, &stop);
                viewers.push((name, viewing));
            }
        }
        for (name, _) in &viewers {
            machines.wait_for_frames(name, 60);
        }
        stop.store(true, Relaxed);
        for (name, viewing) in viewers {
            let summary = viewing.join().unwrap();
            check_refused(&summary);
            assert_eq!(summary.decoded.damaged.total(), 0, "{name}: {summary}");
        }
        end(relay);
    });
}

#[test]
fn in_a_room_the_viewed_person_gets_the_rest_of_the_path() {
    const PEOPLE: usize = 3;
    let machines = Machines::create("looks", 1);
    // All layers of a person take 7 Mb/s, the base alone 2 Mb/s.
    machines.limit_far("13mbit");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for person in 0..PEOPLE {
            machines.publish_as(scope, person, &stop, false);
        }
        let relay = machines.relay_room(PEOPLE);
        // The first two see each other, without a bottleneck.
        let near = [("near-first", 0), ("near-second", 1)].map(|(name, person)| {
            let viewing = machines.watch_person(scope, name, person, &stop);
            machines.wait_for_frames(name, 30);
            viewing
        });
        // The third one looks at the first one for six seconds, then at the second one, and so on.
        let turning = |yaws: [u16; 2]| {
            let pose = |time: f64, yaw: u16| format!("{time},0,1.2,2,{yaw},0\n");
            let poses = (0..20).zip(yaws.into_iter().cycle()).map(|(turn, yaw)| {
                let from = f64::from(6 * turn);
                pose(from, yaw) + &pose(from + 5.9, yaw)
            });
            format!("time_s,x,y,z,yaw,pitch\n{}", poses.collect::<String>())
        };
        let far = [("first", [0, 180]), ("second", [180, 0])];
        let far = (0..).zip(far).map(|(person, (name, yaws))| {
            machines.watch_from(scope, name, person, &turning(yaws), &stop)
        });
        let far: Vec<_> = far.collect();
        for name in ["first", "second"] {
            for (is_looked_at, layers) in [(true, 2), (false, 1)] {
                machines.wait_for_run(name, 30, |row| {
                    (row.is_looked_at, row.layers, row.is_whole) == (is_looked_at, layers, true)
                });
            }
        }
        stop.store(true, Relaxed);
        for viewing in far.into_iter().chain(near) {
            let summary = viewing.join().unwrap();
            println!("{summary}");
            assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
        }
        end(relay);
    });
}

#[test]
fn garbage_is_counted_and_disturbs_nobody() {
    let machines = Machines::create("garbage", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        let relay = machines.relay(0);
        let viewing = machines.watch(scope, "viewer", Place::Near, &stop);
        machines.wait_for_frames("viewer", 30);
        let upstream_socket = machines.relays[0].run(connected_udp_socket).unwrap();
        // Media, messages, and others.
        let from = [
            (&machines.viewers, machines.address(0)),
            (&machines.publisher, upstream_socket),
        ];
        for (namespace, address) in from {
            let send = || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                for length in 1..=1400 {
                    let mut bytes = vec![0x5a; length];
                    bytes[0] = (length % 3) as u8;
                    socket.send_to(&bytes, &address).unwrap();
                }
            };
            namespace.run(send).unwrap();
        }
        let shown = machines.shown("viewer");
        machines.wait_for_frames("viewer", shown + 60);
        machines.wait_for_run("viewer", 60, |_| true);
        // The kernel drops forged media at the address of the upstream, the connected socket receives no
        // datagrams of others, and the process refuses all of them at the address for viewers.
        machines.wait_for_status(0, |status| {
            let refused = &status.broadcasts[0].refused;
            let refused = ["invalid", "too_long"].map(|reason| count(refused, reason));
            // A busy relay does not read all in time.
            refused.iter().all(|count| *count > 0)
                && refused.iter().sum::<u64>() <= 1400
                && count(&status.packets, "no_upstream") == 467
        });
        stop.store(true, Relaxed);
        let summary = viewing.join().unwrap();
        check_refused(&summary);
        end(relay);
    });
}

#[test]
fn a_viewer_goes_on_at_another_address() {
    let machines = Machines::create("moved", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        let relay = machines.relay(0);
        let viewing = machines.watch(scope, "viewer", Place::Near, &stop);
        machines.wait_for_frames("viewer", 30);
        machines
            .viewers
            .ip("addr del 198.51.100.2/24 dev eth0\naddr add 198.51.100.3/24 dev eth0")
            .unwrap();
        let before = machines.shown("viewer");
        machines.wait_for_frames("viewer", before + 60);
        stop.store(true, Relaxed);
        let summary = viewing.join().unwrap();
        println!("{summary}");
        assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
        end(relay);
    });
}

#[test]
fn the_publisher_is_not_needed_for_a_start() {
    let machines = Machines::create("first", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        let relay = machines.relay(0);
        let status = machines.wait_for_status(0, |status| status.broadcasts[0].upstream.is_some());
        assert!(!status.broadcasts[0].is_open);
        let upstream = status.broadcasts[0]
            .upstream
            .map(|address| address.to_string());
        assert_eq!(upstream.as_deref(), Some(PUBLISHER));
        let viewing = machines.watch(scope, "viewer", Place::Near, &stop);
        machines.publish(scope, &stop);
        machines.wait_for_frames("viewer", 30);
        stop.store(true, Relaxed);
        viewing.join().unwrap();
        end(relay);
    });
}

#[test]
fn a_relay_may_start_before_its_network_does() {
    let machines = Machines::create("early", 1);
    let stop = AtomicBool::new(false);
    machines.relays[0].ip("link set eth0 down").unwrap();
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        let relay = machines.relay(0);
        let viewing = machines.watch(scope, "viewer", Place::Near, &stop);
        machines.wait_for_status(0, |status| status.broadcasts[0].upstream.is_none());
        machines.relays[0].ip("link set eth0 up").unwrap();
        machines.wait_for_frames("viewer", 30);
        stop.store(true, Relaxed);
        viewing.join().unwrap();
        end(relay);
    });
}

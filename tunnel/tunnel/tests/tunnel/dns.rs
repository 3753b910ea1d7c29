//! The name servers of the client, in a `/etc` of its own.

use crate::process::{start_with_etc, with_etc, write_program};
use crate::rig::{End, HOST4, Rig, TIMEOUT};
use hawser_testbed::netns::Namespace;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A name server outside the tunnel, and the addresses that it and the one inside answer.
const OUTSIDE: &str = "10.1.0.2";
const ANSWER_OUTSIDE: [u8; 4] = [192, 0, 2, 1];
const ANSWER_INSIDE: [u8; 4] = [192, 0, 2, 2];

const SET: &str = "dns = [\"198.51.100.9\"]\ndns_domains = [\"fleet.example\"]\n";

/// A client whose `/etc` has a `resolv.conf` that names the server outside.
struct Car {
    rig: Rig,
}

impl Car {
    fn new() -> Car {
        let car = Car { rig: Rig::new() };
        fs::create_dir(car.etc()).unwrap();
        fs::write(car.etc().join("nsswitch.conf"), "hosts: dns\n").unwrap();
        fs::write(car.file(), format!("nameserver {OUTSIDE}\n")).unwrap();
        answer(&car.rig.host, HOST4, ANSWER_INSIDE);
        answer(&car.rig.router, OUTSIDE, ANSWER_OUTSIDE);
        car
    }

    fn etc(&self) -> PathBuf {
        self.rig.path("etc")
    }

    fn file(&self) -> PathBuf {
        self.etc().join("resolv.conf")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn start(&self, more: &str) -> End {
        let (etc, programs) = (self.etc(), self.programs());
        let start =
            |file: &_| start_with_etc(&self.rig.client, "tunnel client", file, &etc, &programs);
        self.rig.start_client_by("car", more, start)
    }

    /// Returns the folder of programs that the client finds first.
    fn programs(&self) -> PathBuf {
        self.rig.path("programs")
    }

    /// Resolves a name with the C library; none if it does not exist.
    fn resolve(&self, name: &str) -> Option<String> {
        let mut command = self.rig.client.command("unshare").unwrap();
        command.args(with_etc(&self.etc()));
        let output = command.args(["getent", "ahostsv4", name]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().next().map(str::to_owned)
    }

    fn wait_until_resolved(&self, name: &str, answer: [u8; 4]) {
        let wanted = answer.map(|byte| byte.to_string()).join(".");
        let start = Instant::now();
        loop {
            let resolved = self.resolve(name);
            if resolved.as_ref() == Some(&wanted) {
                return;
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "{name} is {resolved:?}: {}",
                self.text()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Answers requests for addresses of names that end in `example`, until the test ends.
fn answer(namespace: &Namespace, own: &str, address: [u8; 4]) {
    let socket = namespace
        .run(|| UdpSocket::bind((own, 53)).unwrap())
        .unwrap();
    thread::spawn(move || {
        let mut request = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut request) {
            // Fails while the tunnel is down.
            let _ = socket.send_to(&response(&request[..length], address), from);
        }
    });
}

/// Returns the response to a request with one question (RFC 1035, section 4).
fn response(request: &[u8], address: [u8; 4]) -> Vec<u8> {
    let name = request[12..].iter().position(|byte| *byte == 0).unwrap();
    let question = &request[12..12 + name + 5];
    let is_known = question[..name].ends_with(b"\x07example");
    // QR, RD and RA; NXDOMAIN if the name is not known.
    let flags = [0x81, if is_known { 0x80 } else { 0x83 }];
    let has_address = is_known && question[name + 1..name + 3] == [0, 1];
    let counts = [0, 1, 0, u8::from(has_address), 0, 0, 0, 0];
    let mut response = [&request[..2], &flags[..], &counts[..], question].concat();
    if has_address {
        // The name of the question, type A, class IN, no time to live, four bytes.
        response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        response.extend(address);
    }
    response
}

#[test]
fn names_are_resolved_inside_while_the_tunnel_is_up() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    car.wait_until_resolved("car.example", ANSWER_OUTSIDE);
    assert_eq!(car.resolve("car"), None);
    let before = car.text();

    let client = car.start(SET);
    car.wait_until_resolved("car.example", ANSWER_INSIDE);
    car.wait_until_resolved("car", ANSWER_INSIDE);
    client.until("the status names the server", |status| {
        status.dns.as_deref() == Some("198.51.100.9 at /etc/resolv.conf")
    });
    assert!(client.process.stop(TIMEOUT).unwrap().success());
    assert_eq!(car.text(), before);
    car.wait_until_resolved("car.example", ANSWER_OUTSIDE);
}

#[test]
fn a_file_written_meanwhile_is_the_one_restored() {
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    let client = car.start(SET);
    car.wait_until_resolved("car.example", ANSWER_INSIDE);
    let new = format!("nameserver {OUTSIDE}\noptions timeout:2\n");
    fs::write(car.etc().join("new"), &new).unwrap();
    fs::rename(car.etc().join("new"), car.file()).unwrap();
    client.until("the name servers are set again", |status| {
        let mut found = status.deviations.iter();
        status.dns_restored == 1
            && found.any(|found| found.name == "/etc/resolv.conf" && found.restored)
    });
    car.wait_until_resolved("car.example", ANSWER_INSIDE);
    assert!(client.process.stop(TIMEOUT).unwrap().success());
    assert_eq!(car.text(), new);
}

#[test]
fn the_next_client_restores_what_a_killed_one_left() {
    let car = Car::new();
    let before = car.text();
    let server = car.rig.server(0, "", "");
    let client = car.start(SET);
    car.wait_until_resolved("car.example", ANSWER_INSIDE);
    drop(client);
    assert_ne!(car.text(), before);
    drop(server);
    let next = car.start(SET);
    next.until("it has started", |_| true);
    assert_eq!(car.text(), before, "until there is a session");
    let server = car.rig.server(0, "", "");
    car.wait_until_resolved("car.example", ANSWER_INSIDE);
    drop(next);
    drop(server);
    let without = car.start("");
    without.until("it has started", |_| true);
    assert_eq!(car.text(), before);
}

/// A program that keeps records as `resolvconf` of openresolv does, which outlive a client.
fn openresolv(records: &Path) -> String {
    format!(
        r##"#!/bin/sh
cd {} || exit 1
case "$1" in
--version) echo "openresolv 3.12.0" ;;
-a) [ "$3 $4 $5" = "-m 0 -x" ] && cat > "$2" ;;
-f) [ "$2" = -l ] && [ -e "$3" ] && echo "# resolv.conf from $3" && cat "$3" ;;
-d) [ "$3" = -f ] && rm -f "$2" ;;
*) exit 1 ;;
esac
"##,
        records.display()
    )
}

#[test]
fn openresolv_loses_the_servers_with_the_client() {
    let car = Car::new();
    let records = car.rig.path("records");
    fs::create_dir(&records).unwrap();
    write_program(&car.programs(), "resolvconf", &openresolv(&records));
    let record = records.join("hawser-tun");
    let server = car.rig.server(0, "", "");
    let set = |client: &End| {
        client.until("the status names openresolv", |status| {
            status.dns.as_deref() == Some("198.51.100.9 at openresolv")
        });
        let text = fs::read_to_string(&record).unwrap();
        assert_eq!(text, "nameserver 198.51.100.9\nsearch fleet.example\n");
    };
    let client = car.start(SET);
    set(&client);
    assert!(client.process.stop(TIMEOUT).unwrap().success());
    assert!(!record.exists(), "after an orderly end");

    let client = car.start(SET);
    set(&client);
    let mut second = car.start(SET);
    let start = Instant::now();
    while second.process.ended().unwrap().is_none() {
        assert!(start.elapsed() < TIMEOUT, "the interface is in use");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(record.exists(), "of the client that runs");
    drop(client);
    drop(server);
    let left = fs::read_to_string(&record).unwrap();
    for without_session in [SET, ""] {
        fs::write(&record, &left).unwrap();
        let client = car.start(without_session);
        client.until("it has started", |_| true);
        assert!(!record.exists(), "after kill -9, {without_session}");
    }
}

#[test]
fn systemd_resolved_is_told_and_forgets() {
    let car = Car::new();
    let calls = car.rig.path("calls");
    // A guest network on one uplink announces a domain; the other network is none of an uplink.
    let note = format!(
        "#!/bin/sh\n[ \"$*\" = domain ] || exec echo \"$*\" >> {}\n\
         printf 'Global:\\nLink 2 (wan0): com\\nLink 3 (wan1):\\nLink 4 (lan): home.example\\nLink 5 (hawser-tun): ~.\\n'\n",
        calls.display()
    );
    write_program(&car.programs(), "resolvectl", &note);
    let stub = "nameserver 127.0.0.53\noptions edns0\n";
    fs::write(car.file(), stub).unwrap();
    let _server = car.rig.server(0, "", "");
    let client = car.start(SET);
    client.until("the status names systemd-resolved", |status| {
        status.dns.as_deref() == Some("198.51.100.9 at systemd-resolved")
    });
    client.until("the status names the uplink with a domain", |status| {
        status.uplink_domains == ["wan0: com"]
    });
    assert!(client.process.stop(TIMEOUT).unwrap().success());
    let calls = fs::read_to_string(calls).unwrap();
    let expected =
        "dns hawser-tun 198.51.100.9\ndomain hawser-tun ~. fleet.example\nrevert hawser-tun\n";
    assert_eq!(calls, expected);
    assert_eq!(car.text(), stub);
}

#[test]
fn a_name_server_that_is_asked_outside_is_named() {
    const ALL: &str = "routes = [\"0.0.0.0/0\"]\n";
    let car = Car::new();
    let _server = car.rig.server(0, "", "");
    let found = |more: &str, what: Option<&str>, dns: Option<&str>| {
        let client = car.start(more);
        client.until(&format!("{what:?} with {more}"), |status| {
            let mut deviations = status.deviations.iter();
            let found = deviations.find(|found| found.name == format!("name server {OUTSIDE}"));
            let is_expected = match (found, what) {
                (Some(found), Some(what)) => !found.restored && found.what.contains(what),
                // It may have been asked before the tunnel's routes were there.
                (found, None) => found.is_none_or(|found| found.restored),
                (None, Some(_)) => false,
            };
            let is_set =
                dns.is_none_or(|dns| status.dns.as_ref().is_some_and(|set| set.contains(dns)));
            is_expected && is_set && !status.sessions.is_empty()
        });
        assert!(client.process.stop(TIMEOUT).unwrap().success());
    };
    let outside = Some("asked outside the tunnel, over wan0");
    let set = format!("dns = [\"{OUTSIDE}\"]\n");
    found(ALL, outside, None);
    found(&format!("{ALL}bypass = [\"{OUTSIDE}/32\"]"), None, None);
    found(&set, outside, Some(OUTSIDE));
    let inside = "through the tunnel, although a network";
    found(&format!("{ALL}{set}"), None, Some(inside));
    found(&format!("{ALL}dns = [\"{HOST4}\"]"), None, Some(HOST4));
    found(&format!("{ALL}kill_switch = true"), Some("blocks"), None);
}

//! Networks that block UDP, or everything.

use crate::rig::{End, HOST4, PORT, Rig, UPLINKS, nft};
use crate::traffic::{Connection, echo};
use hawser_tunnel::status::Status;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const SERVER: &str = "203.0.0.1";
const TCP_PORT: u16 = 443;

/// The time in which a client notices that UDP works again: it tries every 30 s.
const UDP_RETRY: Duration = Duration::from_secs(75);

fn server(rig: &Rig) -> End {
    rig.server(0, &listen_tcp(), "")
}

fn listen_tcp() -> String {
    format!("listen_tcp = [\"[::]:{TCP_PORT}\"]")
}

fn start_client(rig: &Rig, more: &str) -> End {
    start_client_to(rig, more, &format!("\"{SERVER}:{PORT}\""))
}

fn start_client_to(rig: &Rig, more: &str, addresses: &str) -> End {
    let sections = format!(
        "[[server]]\nname = \"one\"\naddresses = [{addresses}]\ntcp_port = {TCP_PORT}\n\
         [[uplink]]\ninterface = \"wan*\"\n"
    );
    rig.client_with("car", more, &sections)
}

/// Opens connections over TCP to the server that send nothing.
fn connect_silently(rig: &Rig, count: usize) -> Vec<TcpStream> {
    let connect = || TcpStream::connect((SERVER, TCP_PORT)).unwrap();
    let connections = (0..count).map(|_| rig.client.run(connect).unwrap());
    connections.collect()
}

/// Drops the UDP packets that the router forwards from an uplink.
fn block_udp(rig: &Rig, uplink: &str) {
    let rule = format!("iifname \"{uplink}\" meta l4proto udp drop");
    nft(
        &rig.router,
        &format!(
            "table inet no_udp {{\nchain forward {{\ntype filter hook forward priority 0;\n{rule}\n}}\n}}"
        ),
    );
}

fn open_udp(rig: &Rig) {
    nft(&rig.router, "delete table inet no_udp");
}

/// Returns whether each path is one over TCP, by the order of the uplinks.
fn over_tcp(status: &Status) -> Vec<bool> {
    let mut paths: Vec<_> = status
        .sessions
        .iter()
        .flat_map(|session| &session.paths)
        .collect();
    paths.sort_by(|one, other| one.name.cmp(&other.name));
    paths.iter().map(|path| path.over_tcp).collect()
}

#[test]
fn a_client_without_udp_is_served_over_tcp_until_udp_works() {
    let rig = Rig::new();
    let server = server(&rig);
    UPLINKS.iter().for_each(|uplink| block_udp(&rig, uplink));
    let client = start_client(&rig, "");
    for end in [&client, &server] {
        end.until("both paths are over TCP", |status| {
            over_tcp(status) == [true; 2]
        });
    }
    echo(&rig.client, &rig.host, HOST4);
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    connection.wait_for_progress();
    let since = client.session().since_unix_ms;
    open_udp(&rig);
    for end in [&client, &server] {
        end.within(UDP_RETRY, "both paths are over UDP", |status| {
            over_tcp(status) == [false; 2]
        });
    }
    connection.wait_for_progress();
    assert_eq!(client.session().since_unix_ms, since, "the same session");
    connection.end();
}

#[test]
fn an_uplink_whose_udp_gets_blocked_continues_over_tcp() {
    let rig = Rig::new();
    let _server = server(&rig);
    let client = start_client(&rig, "kill_switch = true");
    client.until("both paths are over UDP", |status| {
        over_tcp(status) == [false; 2]
    });
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    let since = client.session().since_unix_ms;
    block_udp(&rig, "wan1");
    client.until("one path is over TCP", |status| {
        over_tcp(status) == [false, true]
    });
    block_udp(&rig, "wan0");
    client.until("both paths are over TCP", |status| {
        over_tcp(status) == [true; 2]
    });
    connection.wait_for_progress();
    assert_eq!(client.session().since_unix_ms, since, "the same session");
    connection.end();
}

#[test]
fn streams_that_no_client_opened_are_refused() {
    let rig = Rig::new();
    let server = server(&rig);
    let connect = || connect_silently(&rig, 1).pop().unwrap();
    connect().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    server.wait_until_counted("connection_handshake", 1);
    assert_eq!(connect().read(&mut [0]).unwrap(), 0, "closed");
    server.wait_until_counted("connection_timeout", 1);

    // A client of the authority that the server does not admit any more.
    UPLINKS.iter().for_each(|uplink| block_udp(&rig, uplink));
    let client = start_client(&rig, "");
    client.session();
    let file = fs::read_to_string(rig.path("one.toml")).unwrap();
    let file = file.replacen("[tunnel]\n", "[tunnel]\nrevoked_clients = [\"car\"]\n", 1);
    fs::write(rig.path("one.toml"), file).unwrap();
    let pid = Pid::from_raw(server.process.id().try_into().unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
    server.until("the session has ended", |status| status.sessions.is_empty());
    server.wait_until_counted("connection_not_admitted", 1);
}

#[test]
fn silent_tcp_connections_keep_no_udp_client_out() {
    let rig = Rig::new();
    let server = server(&rig);
    // One more than a source may have; the client has the same address, and does not try TCP.
    let _silent = connect_silently(&rig, 33);
    server.wait_until_counted("connection_too_many_of_source", 1);
    let client = rig.start_client("car", "");
    client.session();
    let status = server.until("the session is there", |status| !status.sessions.is_empty());
    assert_eq!(status.dropped["connection_too_many_of_source"], 1);
}

#[test]
fn connections_over_tcp_leave_files_for_clients_over_udp() {
    let rig = Rig::new();
    // The server keeps 128 files for all but connections over TCP.
    let server = rig.server_with_files(144, &listen_tcp());
    let _silent = connect_silently(&rig, 17);
    server.wait_until_counted("connection_too_many_files", 1);
    let client = start_client(&rig, "");
    client.until("there is a path over UDP", |status| {
        over_tcp(status).contains(&false)
    });
}

#[test]
fn a_captive_portal_is_named() {
    let rig = Rig::new();
    let _server = server(&rig);
    nft(
        &rig.router,
        "table ip portal {\nchain redirected {\ntype nat hook prerouting priority dstnat;\n\
         iifname \"wan*\" tcp dport 80 redirect to :8080\n}\n\
         chain forward {\ntype filter hook forward priority 0;\niifname \"wan*\" drop\n}\n}\n\
         table ip6 closed {\nchain forward {\ntype filter hook forward priority 0;\niifname \"wan*\" drop\n}\n}",
    );
    let portal = rig
        .router
        .run(|| TcpListener::bind("0.0.0.0:8080").unwrap())
        .unwrap();
    thread::spawn(move || {
        for stream in portal.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(
                b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/login\r\nContent-Length: 0\r\n\r\n",
            );
        }
    });
    // The portal answers over IPv4 only.
    let addresses = format!("\"[fd20:0::1]:{PORT}\", \"{SERVER}:{PORT}\"");
    let client = start_client_to(&rig, "kill_switch = true", &addresses);
    let page = "it names \"http://portal.example/login\"";
    client.within(UDP_RETRY, page, |status| {
        let mut uplinks = status.uplinks.iter();
        !status.uplinks.is_empty() && uplinks.all(|uplink| uplink.state.contains(page))
    });
}

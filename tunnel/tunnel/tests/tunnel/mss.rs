//! TCP connections of hosts behind the client that do not receive ICMP.

use crate::rig::{HOST4, HOST6, Rig, TIMEOUT, nft};
use hawser_testbed::netns::Namespace;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;

/// Many full segments.
const BYTES: usize = 200_000;

/// Rejects the ICMP errors about packets that are too large.
const FILTER: &str = "table inet filtered {\nchain arrives {\ntype filter hook input priority 0;\n\
     icmp type destination-unreachable counter drop\nicmpv6 type packet-too-big counter drop\n}\n}";

#[test]
fn connections_of_hosts_behind_fit_without_icmp() {
    let rig = Rig::new();
    let behind = rig.network_behind_the_client();
    for end in [&behind, &rig.host] {
        nft(end, FILTER);
    }
    let _server = rig.server(0, "", "");
    let _client = rig.client("masquerade = true");
    for address in [HOST4, HOST6] {
        exchange(&behind, &rig.host, address);
    }
    let _ = behind.delete();
}

/// Sends data in both directions at once over one connection.
fn exchange(from: &Namespace, to: &Namespace, address: &str) {
    let address: IpAddr = address.parse().unwrap();
    let listener = to.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let near = from.run(|| TcpStream::connect(target).unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let mut threads = Vec::new();
    for (name, end) in [("up", near), ("down", far)] {
        end.set_write_timeout(Some(TIMEOUT)).unwrap();
        let mut sending = end.try_clone().unwrap();
        threads.push((
            name,
            thread::spawn(move || sending.write_all(&[7; BYTES]).is_ok()),
        ));
        let mut receiving = end;
        receiving.set_read_timeout(Some(TIMEOUT)).unwrap();
        threads.push((
            if name == "up" { "down" } else { "up" },
            thread::spawn(move || receiving.read_exact(&mut [0; BYTES]).is_ok()),
        ));
    }
    for (direction, thread) in threads {
        assert!(thread.join().unwrap(), "{direction} to {address} stalls");
    }
}

use crate::facts::{Answer, Fact, PeerFacts, Way};
use hawser_io::{interface, sockopt};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

/// The time that a peer has to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Resolves a peer `HOST:PORT`, and opens a connection to its first address with a route.
pub(crate) fn peer(name: &str) -> PeerFacts {
    let addresses = name
        .to_socket_addrs()
        .map(|addresses| addresses.collect::<Vec<_>>());
    let addresses = addresses.map_err(|error| error.to_string());
    let known = addresses.as_ref().map(Vec::as_slice).unwrap_or_default();
    let has_route = |address: &&SocketAddr| connected(**address).is_ok();
    let address = known.iter().find(has_route).or(known.first());
    PeerFacts {
        name: name.to_owned(),
        way: address.map(|address| way(*address)),
        addresses,
    }
}

fn way(address: SocketAddr) -> Way {
    let route = interface::route(address.ip(), None).map_err(|error| error.to_string());
    // The kernel learns the MTU of the path from what comes back to this.
    let answer = answer(address);
    let socket = connected(address);
    let of_socket = |error: &io::Error| error.to_string();
    let socket = socket.as_ref().map_err(of_socket);
    let source: Fact<IpAddr> = socket
        .clone()
        .and_then(|socket| socket.local_addr().map_err(|error| error.to_string()))
        .map(|own| own.ip());
    let mtu_bytes = socket.and_then(|socket| {
        sockopt::path_mtu(socket, address.is_ipv6()).map_err(|error| error.to_string())
    });
    Way {
        address,
        route,
        source,
        mtu_bytes,
        answer,
    }
}

/// Returns a UDP socket that is connected to an address, to which nothing is sent.
fn connected(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    Ok(socket)
}

fn answer(address: SocketAddr) -> Answer {
    match TcpStream::connect_timeout(&address, TIMEOUT) {
        Ok(_) => Answer::Accepted,
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Answer::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Answer::Silence,
            _ => Answer::Unreachable(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_listener_on_this_machine_accepts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let facts = peer(&address.to_string());
        let way = facts.way.unwrap();
        assert_eq!(way.answer, Answer::Accepted);
        assert_eq!(way.source, Ok(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(way.route.unwrap().interface, "lo");
        assert!(way.mtu_bytes.unwrap() >= 1500);
    }
}

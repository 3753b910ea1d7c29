use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// Bytes that may wait in a viewer's socket before TCP has sent them: what a frame may be late because of the one before
/// it, 7 ms at 150 Mb/s. The send buffer itself is left to the kernel, which grows it with the bandwidth-delay product;
/// a fixed size would be too small for a long path, and this limit keeps it from filling with stale frames.
const UNSENT_BYTES: u32 = 128 * 1024;
/// A viewer from whom no acknowledgement comes for so long is gone.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// How often the accepting thread looks whether it shall end.
const ACCEPT_TIMEOUT_MS: u8 = 100;
const BACKLOG: i32 = 64;
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The kernel refuses a congestion control.
#[derive(Debug, thiserror::Error)]
#[error("TCP congestion control \"{name}\" cannot be used: {error}; available here: {available}")]
struct NoCongestionControl {
    name: String,
    available: String,
    error: io::Error,
}

/// A listening socket; the viewers' sockets, and all their subflows, inherit its congestion control. One for MPTCP serves
/// viewers that speak plain TCP as well.
pub(crate) fn listen(
    address: SocketAddr,
    congestion: &str,
    mptcp: bool,
) -> anyhow::Result<TcpListener> {
    let protocol = if mptcp {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))
        .with_context(|| {
            format!(
                "cannot open a socket{}",
                if mptcp { " of MPTCP" } else { "" }
            )
        })?;
    socket
        .set_tcp_congestion(congestion.as_bytes())
        .map_err(|error| NoCongestionControl {
            name: congestion.to_owned(),
            available: fs::read_to_string(AVAILABLE)
                .map_or_else(|error| error.to_string(), |text| text.trim().to_owned()),
            error,
        })?;
    // A publisher that was killed can be started again at once.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The next viewer; fails with `WouldBlock` when none comes for a while. A listening MPTCP socket has no timeout of its
/// own, so this is not left to the socket.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    poll(
        &mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)],
        PollTimeout::from(ACCEPT_TIMEOUT_MS),
    )?;
    listener.accept()
}

/// Prepares an accepted socket.
pub(crate) fn configure(stream: &TcpStream) -> anyhow::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket
        .set_tcp_notsent_lowat(UNSENT_BYTES)
        .context("TCP_NOTSENT_LOWAT")?;
    // MPTCP has no such option: the subflows of a viewer that is gone time out one by one.
    if socket.protocol()? != Some(Protocol::MPTCP) {
        socket
            .set_tcp_user_timeout(Some(DEAD_AFTER))
            .context("TCP_USER_TIMEOUT")?;
    }
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(DEAD_AFTER / 3)
            .with_interval(DEAD_AFTER / 3),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_congestion_control_is_refused_with_the_ones_there_are() {
        let error = listen("127.0.0.1:0".parse().unwrap(), "warp", false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"warp\" cannot be used") && error.contains("cubic"),
            "{error}"
        );
    }

    #[test]
    fn accepted_sockets_inherit_the_congestion_control() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), "reno", false).unwrap();
        let _viewer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();

        let (accepted, _) = accept(&listener).unwrap();
        configure(&accepted).unwrap();

        let name = SockRef::from(&accepted).tcp_congestion().unwrap();
        assert!(name.starts_with(b"reno"), "{name:?}");
        assert_eq!(
            SockRef::from(&accepted).tcp_notsent_lowat().unwrap(),
            UNSENT_BYTES
        );
    }

    #[test]
    fn viewers_of_both_protocols_are_accepted_where_mptcp_is_spoken() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), "reno", true).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(
            accept(&listener).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        for protocol in [Protocol::MPTCP, Protocol::TCP] {
            let viewer = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).unwrap();
            viewer.connect(&address.into()).unwrap();

            let (accepted, _) = accept(&listener).unwrap();
            configure(&accepted).unwrap();

            assert_eq!(SockRef::from(&accepted).protocol().unwrap(), Some(protocol));
            let name = SockRef::from(&accepted).tcp_congestion().unwrap();
            assert!(name.starts_with(b"reno"), "{name:?}");
        }
    }
}

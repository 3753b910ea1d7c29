use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// Maximum number of unsent bytes in a viewer's socket. A frame can be delayed by that much of the
/// previous one, 7 ms at 150 Mb/s. The size of the send buffer is left to the kernel, which grows
/// it with the bandwidth-delay product. A fixed size would be too small for a long round-trip time,
/// and this limit keeps the buffer from filling with stale frames.
const UNSENT_BYTES: u32 = 128 * 1024;
/// A viewer that sends no acknowledgement for this long is considered dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// Interval at which the accepting thread checks whether it should stop.
const ACCEPT_TIMEOUT_MS: u8 = 100;
const BACKLOG: i32 = 64;
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The error of a congestion control that the kernel rejects.
#[derive(Debug, thiserror::Error)]
#[error("TCP congestion control \"{name}\" cannot be used: {error}; available here: {available}")]
struct NoCongestionControl {
    name: String,
    available: String,
    error: io::Error,
}

/// Opens a listening socket. The viewers' sockets, and all their subflows, inherit its congestion
/// control. An MPTCP socket also serves viewers that use plain TCP.
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
    // A publisher that was killed can be restarted at once.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Accepts the next viewer. Fails with `WouldBlock` if none connects within [`ACCEPT_TIMEOUT_MS`].
/// The timeout is not set on the socket, because a listening MPTCP socket has none.
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
    // MPTCP has no such option: the subflows of a dead viewer time out one by one.
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
    fn an_unknown_congestion_control_is_rejected_with_the_known() {
        let error = listen("127.0.0.1:0".parse().unwrap(), "warp", false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"warp\" cannot be used") && error.contains("reno"),
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
    fn with_mptcp_viewers_of_both_protocols_are_accepted() {
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

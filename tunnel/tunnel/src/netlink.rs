//! Notifications of the kernel about changes.

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// `linux/rtnetlink.h`: the groups for links and addresses of both families.
pub(crate) const LINKS_AND_ADDRESSES: u32 = 0x1 | 0x10 | 0x100;

/// A subscription to netlink groups. It reports only that something changed; the caller then asks
/// the kernel for the current state.
#[derive(Debug)]
pub(crate) struct Changes(AsyncFd<OwnedFd>);

impl Changes {
    /// Subscribes to the groups in the mask `groups`. Must be called within a Tokio runtime.
    pub(crate) fn subscribe(protocol: SockProtocol, groups: u32) -> io::Result<Changes> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; this descriptor stays open as long as the registration"
        )]
        Ok(Changes(AsyncFd::new(socket)?))
    }

    /// Waits for a change, then discards further changes that arrive within `settle`.
    pub(crate) async fn next(&self, settle: Duration) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        sleep(settle).await;
        let mut message = [0; 8192];
        // An overflow of the socket's buffer counts as a change, too.
        while !matches!(
            recv(
                self.0.get_ref().as_raw_fd(),
                &mut message,
                MsgFlags::MSG_DONTWAIT
            ),
            Err(nix::Error::EAGAIN) | Ok(0)
        ) {}
        ready.clear_ready();
        Ok(())
    }
}

use super::{Deviation, Item, Keeper, Rules};
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The interval of checks without a notification. Parameters (`sysctl`) have none.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The minimum time between two checks, however often something changes.
const MIN_CHECK_PAUSE: Duration = Duration::from_millis(100);

/// The groups of `linux/rtnetlink.h` for links, addresses and routes of both IP versions.
const ROUTE_GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// `linux/netfilter/nfnetlink.h`: `NFNLGRP_NFTABLES`, as a mask.
const NFTABLES_GROUP: u32 = 1 << 6;

/// A thread that keeps items until this value is dropped.
#[derive(Debug)]
pub struct Watch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Locked while the items are listed and checked. `None` when the watch has ended.
    keeper: Mutex<Option<Keeper>>,
    deviations: Mutex<Vec<Deviation>>,
}

impl Watch {
    /// Keeps the items that `list` returns, in the network namespace of the calling thread. They are
    /// listed again for each check. The first check is made before this returns.
    pub fn start<L>(mut list: L) -> io::Result<Watch>
    where
        L: FnMut(&mut Rules) -> Vec<Box<dyn Item>> + Send + 'static,
    {
        let sockets = Sockets {
            routes: subscribe(NETLINK_ROUTE, ROUTE_GROUPS)?,
            // Without nftables in the kernel, there are no rules to watch.
            rules: subscribe(NETLINK_NETFILTER, NFTABLES_GROUP).ok(),
        };
        let shared = Arc::new(Shared {
            keeper: Mutex::new(Some(Keeper::default())),
            ..Shared::default()
        });
        let mut rules = Rules::default();
        shared.check(&mut list, &mut rules);
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new().name("kept".to_owned());
        thread.spawn(move || {
            while watched.check(&mut list, &mut rules) {
                thread::sleep(MIN_CHECK_PAUSE);
                if wait(&sockets) {
                    rules.have_changed();
                }
            }
        })?;
        Ok(Watch(shared))
    }

    /// Returns the deviations, by the names of the items.
    pub fn deviations(&self) -> Vec<Deviation> {
        self.0.deviations.lock().clone()
    }

    /// Returns how often items were restored.
    pub fn restored(&self) -> u64 {
        let deviations = self.0.deviations.lock();
        deviations.iter().map(|found| found.restorations).sum()
    }
}

impl Drop for Watch {
    /// After this, nothing is restored any more.
    fn drop(&mut self) {
        *self.0.keeper.lock() = None;
    }
}

impl Shared {
    /// Checks the items. Returns whether they are still to be kept.
    fn check(
        &self,
        list: &mut impl FnMut(&mut Rules) -> Vec<Box<dyn Item>>,
        rules: &mut Rules,
    ) -> bool {
        let mut keeper = self.keeper.lock();
        let Some(keeper) = keeper.as_mut() else {
            return false;
        };
        keeper.keep(&mut list(rules));
        *self.deviations.lock() = keeper.deviations();
        true
    }
}

fn subscribe(protocol: isize, groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind(&SocketAddr::new(0, groups))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// The sockets with the kernel's notifications.
struct Sockets {
    routes: Socket,
    rules: Option<Socket>,
}

/// Waits for a notification or until the next check is due. Returns whether rules have changed.
fn wait(Sockets { routes, rules }: &Sockets) -> bool {
    let mut polled: Vec<_> = [Some(routes), rules.as_ref()]
        .into_iter()
        .flatten()
        // SAFETY: the sockets live longer than what is polled.
        .map(|socket| unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) })
        .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
        .collect();
    let timeout = PollTimeout::try_from(CHECK_INTERVAL).unwrap_or(PollTimeout::MAX);
    // An interruption or a failure is as good a reason to check as a notification.
    let _ = poll(&mut polled, timeout);
    drain(routes);
    rules.as_ref().is_some_and(drain)
}

/// Reads all notifications. Returns whether there were any; an overflow of the socket's buffer counts as
/// one.
fn drain(socket: &Socket) -> bool {
    let mut buffer = Vec::with_capacity(1 << 16);
    let mut has_changed = false;
    loop {
        buffer.clear();
        match socket.recv(&mut buffer, 0) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return has_changed,
            Ok(0) => return has_changed,
            _ => has_changed = true,
        }
    }
}

//! The routes to clients. Their MTU makes the kernel report the size limit to senders of larger
//! packets (RFC 1191, RFC 8201).
//!
//! Changes are recorded by address and applied in batches, so that the kernel changes each route at
//! most a few times a second, regardless of the number of changes.

use super::registry::Registry;
use crate::device::Device;
use crate::join::SessionId;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;
use tracing::warn;

/// The pause after a batch.
const PAUSE: Duration = Duration::from_millis(100);

/// The largest number of addresses in a batch.
const BATCH: usize = 256;

/// The changes that have not been applied yet.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pending: Mutex<BTreeMap<IpAddr, Change>>,
    changed: Condvar,
}

/// A change of the route to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    session: SessionId,
    /// The MTU of the route, in bytes; none deletes the route, because the session has ended.
    mtu: Option<u16>,
}

impl Routes {
    /// Sets the MTU of the routes to a session's client, in bytes, unless the session has ended.
    pub(super) fn set(
        &self,
        registry: &Registry,
        session: SessionId,
        addresses: &[IpAddr],
        mtu: u16,
    ) {
        if registry.is_open(session) {
            self.record(session, addresses, Some(mtu));
        }
    }

    /// Deletes the routes of a session that has ended, except to addresses that another session has
    /// by now.
    pub(super) fn delete(&self, session: SessionId, addresses: &[IpAddr]) {
        self.record(session, addresses, None);
    }

    fn record(&self, session: SessionId, addresses: &[IpAddr], mtu: Option<u16>) {
        let mut pending = self.pending.lock();
        for address in addresses {
            let belongs_to_successor = pending
                .get(address)
                .is_some_and(|change| change.session != session);
            if mtu.is_some() || !belongs_to_successor {
                pending.insert(*address, Change { session, mtu });
            }
        }
        self.changed.notify_one();
    }

    /// Applies changes as long as the process runs.
    pub(super) fn apply(&self, device: &Device, registry: &Registry) {
        loop {
            let mut changes = self.take();
            changes.retain(|(address, change)| match change.mtu {
                Some(_) => registry.is_open(change.session),
                None => !registry.is_taken(*address),
            });
            let changes: Vec<_> = changes
                .into_iter()
                .map(|(address, change)| (address, change.mtu))
                .collect();
            device
                .route_clients(&changes)
                .unwrap_or_else(|error| warn!("{error:#}"));
            thread::sleep(PAUSE);
        }
    }

    /// Waits for changes and returns a batch of them.
    fn take(&self) -> Vec<(IpAddr, Change)> {
        let mut pending = self.pending.lock();
        self.changed
            .wait_while(&mut pending, |pending| pending.is_empty());
        std::iter::from_fn(|| pending.pop_first())
            .take(BATCH)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_nobody_has_taken_are_one_for_each_address() {
        let routes = Routes::default();
        let addresses: Vec<IpAddr> = (0..2).map(|host| [10, 77, 0, host].into()).collect();
        let mut last = SessionId::random();
        for _ in 0..10_000 {
            last = SessionId::random();
            routes.record(last, &addresses, Some(1400));
            routes.record(last, &addresses, Some(1430));
        }
        let change = Change {
            session: last,
            mtu: Some(1430),
        };
        assert_eq!(
            routes.take(),
            addresses
                .iter()
                .map(|address| (*address, change))
                .collect::<Vec<_>>()
        );
        assert!(routes.pending.lock().is_empty());
    }

    #[test]
    fn the_end_of_a_session_takes_nothing_from_its_successor() {
        let routes = Routes::default();
        let address: [IpAddr; 1] = [[10, 77, 0, 2].into()];
        let (former, latter) = (SessionId::random(), SessionId::random());
        routes.record(former, &address, Some(1400));
        routes.record(latter, &address, Some(1430));
        routes.delete(former, &address);
        assert_eq!(
            routes.take()[0].1,
            Change {
                session: latter,
                mtu: Some(1430)
            }
        );
        routes.delete(latter, &address);
        assert_eq!(routes.take()[0].1.mtu, None);
    }

    #[test]
    fn a_batch_is_bounded_and_nothing_is_left_out() {
        let routes = Routes::default();
        let address =
            |number: usize| IpAddr::from([10, 77, (number / 256) as u8, (number % 256) as u8]);
        let addresses: Vec<_> = (0..2 * BATCH + 1).map(address).collect();
        routes.record(SessionId::random(), &addresses, Some(1400));
        let batches: Vec<_> = (0..3).map(|_| routes.take().len()).collect();
        assert_eq!(batches, [BATCH, BATCH, 1]);
    }
}

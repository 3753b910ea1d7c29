//! The addresses and routes of a client's device, and what restores them when another program
//! removes some.

use crate::tables::{CHECK_INTERVAL, RESTORE_PAUSE, RETRY};
use hawser_io::failures::{Change, Failures};
use hawser_io::interface;
use hawser_io::netlink::{self, Address, Error, LinkChange, Route};
use std::time::{Duration, Instant};
use tracing::{error, warn};

/// The addresses and routes of a client's device.
#[derive(Debug)]
pub(super) struct Configured {
    interface: String,
    addresses: Vec<Address>,
    routes: Vec<Route>,
    /// Whether the MTU is large enough for IPv6, which is enabled on the host. The kernel removes
    /// addresses and routes of IPv6 otherwise.
    pub(super) takes_ipv6: bool,
    /// How often another program's removals were undone, and when last.
    restored: u64,
    restored_at: Option<Instant>,
    failures: Failures,
}

impl Configured {
    pub(super) fn of(interface: &str, takes_ipv6: bool) -> Configured {
        Configured {
            interface: interface.to_owned(),
            addresses: Vec::new(),
            routes: Vec::new(),
            takes_ipv6,
            restored: 0,
            restored_at: None,
            failures: Failures::default(),
        }
    }

    /// Replaces the addresses and the routes. If the addresses stay, routes that stay are never
    /// missing.
    pub(super) fn replace(
        &mut self,
        addresses: Vec<Address>,
        routes: Vec<Route>,
    ) -> Result<(), Error> {
        for route in self.routes.iter().filter(|route| !routes.contains(route)) {
            // Another program may have removed it.
            let _ = route.delete();
        }
        if self.addresses != addresses {
            netlink::flush_addresses(&self.interface)?;
        }
        (self.addresses, self.routes) = (addresses, routes);
        self.add_missing().1
    }

    /// Adds the addresses and routes that the device does not have. Returns whether there were such,
    /// and the first error; others are added nevertheless.
    pub(super) fn add_missing(&self) -> (bool, Result<(), Error>) {
        let addresses = self.addresses.iter();
        let addresses = addresses.filter(|address| self.takes_ipv6 || address.address.is_ipv4());
        let routes = self.routes.iter();
        let routes = routes.filter(|route| self.takes_ipv6 || route.destination.is_ipv4());
        let (mut were_missing, mut result) = (false, Ok(()));
        for added in addresses
            .map(Address::add)
            .chain(routes.map(Route::prepend))
        {
            match added {
                Ok(added) => were_missing |= added,
                Err(error) => result = result.and(Err(error)),
            }
        }
        (were_missing, result)
    }

    /// Sets the device up and adds what it does not have. Returns the time after which to check again
    /// at the latest.
    pub(super) fn check(&mut self) -> Duration {
        let since = self.restored_at.map(|at| at.elapsed());
        if let Some(wait) = since.and_then(|since| RESTORE_PAUSE.checked_sub(since)) {
            return wait;
        }
        let (was_incomplete, result) = match self.set_up() {
            Ok(was_down) => {
                let (were_missing, result) = self.add_missing();
                (was_down || were_missing, result)
            }
            Err(error) => (false, Err(error)),
        };
        let interface = self.interface.as_str();
        if was_incomplete {
            self.restored_at = Some(Instant::now());
            self.restored += 1;
            warn!(
                interface,
                "addresses and routes restored: another program had removed some or set the device down"
            );
        }
        let is_failing = result.is_err();
        if let Some(Change::Failed(error)) = self.failures.record(result) {
            error!(
                interface,
                "cannot restore addresses or routes, without which packets leave outside the tunnel: {error}"
            );
        }
        if is_failing { RETRY } else { CHECK_INTERVAL }
    }

    /// Sets the device up; returns whether it was down.
    fn set_up(&self) -> Result<bool, Error> {
        if interface::link(&self.interface)?.is_up {
            return Ok(false);
        }
        let up = LinkChange {
            up: true,
            ..LinkChange::default()
        };
        up.apply(&self.interface).map(|()| true)
    }

    /// Returns how often another program's removals were undone.
    pub(super) fn restored(&self) -> u64 {
        self.restored
    }
}

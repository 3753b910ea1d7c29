//! Rate limits of requests and of failed authentications, and the proof that a request has passed its
//! checks.
//!
//! Every request passes the same checks in the same order: its route and its declared size (`api.rs`), its identity
//! (`access.rs`), and then its scope and its rate here. Only then may it cost the store anything: the last check returns
//! the [`Checked`] without which nothing reaches the [`CheckedStore`].

use crate::config::LimitsConfig;
use crate::store::Store;
use hawser_io::rate_limit::RateLimit;
use hawser_io::sources::source;
use hawser_model::Name;
use hawser_model::access::{Scope, Token};
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

/// The minimum burst size.
const MIN_BURST: f64 = 20.0;

/// The number of source addresses whose failures are remembered.
const MAX_SOURCES: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// The number of names whose requests are remembered: more than a controller has nodes or tokens.
const MAX_NAMES: NonZeroUsize = NonZeroUsize::new(1 << 18).unwrap();

/// The proof that a request has passed its checks.
#[derive(Debug, Clone)]
pub(crate) struct Checked(());

/// The store, for the holders of the proof.
pub(crate) struct CheckedStore(Arc<dyn Store>);

impl CheckedStore {
    /// Also returns the proof for the work of the controller itself, which no client has requested.
    pub(crate) fn new(store: Arc<dyn Store>) -> (CheckedStore, Checked) {
        (CheckedStore(store), Checked(()))
    }

    pub(crate) fn after(&self, _checks: &Checked) -> &Arc<dyn Store> {
        &self.0
    }
}

/// The check that a request with a valid token has not passed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unchecked {
    Scope,
    /// There were too many requests; the time until the next one.
    Rate(Duration),
}

pub(crate) struct Limits {
    operators: RateLimit<Name>,
    nodes: RateLimit<Name>,
    /// Requests with enrolment tokens, by identifier. They are not counted as requests of the node: with
    /// an old token, which anyone may find, nobody uses up what the node needs for its reports.
    enrolments: RateLimit<String>,
    /// Failed authentications. Valid credentials are accepted from any address: secrets have 256
    /// random bits, so guessing is infeasible, and no client can lock out another.
    failures: RateLimit<IpAddr>,
}

impl Limits {
    pub(crate) fn new(config: &LimitsConfig) -> Limits {
        let failures_per_s = config.failures_per_minute / 60.0;
        Limits {
            operators: by_name(
                config.operator_requests_per_s,
                burst(config.operator_requests_per_s),
            ),
            nodes: by_name(
                config.node_requests_per_s,
                burst(config.node_requests_per_s),
            ),
            enrolments: by_name(
                config.node_requests_per_s,
                burst(config.node_requests_per_s),
            ),
            failures: RateLimit::new(failures_per_s, burst(failures_per_s), MAX_SOURCES),
        }
    }

    /// Checks the scope and the rate of a request by the bearer of a token.
    pub(crate) fn operator(&self, token: &Token, needs: Scope) -> Result<Checked, Unchecked> {
        if token.scope < needs {
            return Err(Unchecked::Scope);
        }
        let taken = self.operators.take(token.name.clone());
        taken.map(|()| Checked(())).map_err(Unchecked::Rate)
    }

    /// Checks the rate of a request by a node. Returns the time until the next one if there were too
    /// many.
    pub(crate) fn node(&self, node: &Name) -> Result<Checked, Duration> {
        self.nodes.take(node.clone()).map(|()| Checked(()))
    }

    /// Checks the rate of a request with the enrolment token of that identifier. Returns the time until
    /// the next one if there were too many.
    pub(crate) fn enrolment(&self, id: &str) -> Result<Checked, Duration> {
        self.enrolments.take(id.to_owned()).map(|()| Checked(()))
    }

    /// Counts a failed authentication from an address. Returns the time until the next one if there
    /// were too many.
    pub(crate) fn failure(&self, address: IpAddr) -> Result<(), Duration> {
        self.failures.take(source(address))
    }

    /// Checks the rate of requests from an address whose identity only the store can confirm. Each counts
    /// as a failure.
    pub(crate) fn stranger(&self, address: IpAddr) -> Result<Checked, Duration> {
        self.failure(address).map(|()| Checked(()))
    }
}

/// Returns a limit by the name of a node or of a token.
pub(crate) fn by_name<K: Clone + Eq + std::hash::Hash>(
    per_s: f64,
    burst: NonZeroU32,
) -> RateLimit<K> {
    RateLimit::new(per_s, burst, MAX_NAMES)
}

/// Returns the burst size for a rate.
fn burst(per_s: f64) -> NonZeroU32 {
    // The conversion saturates.
    NonZeroU32::new((2.0 * per_s).max(MIN_BURST) as u32).expect("the minimum is not zero")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_rate_is_accepted_at_once_and_at_least_the_minimum() {
        assert_eq!(burst(50.0).get(), 100);
        assert_eq!(burst(1.0).get(), 20);
        assert_eq!(burst(1e300).get(), u32::MAX);
    }
}

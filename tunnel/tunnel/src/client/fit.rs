//! Makes connections for packets that the network behind an uplink carries. All uplinks do this at
//! once, and smaller packets are tried while the answer to larger ones is awaited.

use super::dial::{Dialed, Dialer, TooLarge};
use super::narrow::smaller_mtus;
use anyhow::Result;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use hawser_uplinks::Uplink;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::sleep;

/// The time for which an answer is awaited before smaller packets are tried as well: a few round trips,
/// enough for one retransmission.
const ROUND_TRIPS: u32 = 3;
const MIN_STEP: Duration = Duration::from_millis(300);
const MAX_STEP: Duration = Duration::from_secs(1);

/// Connections for packets of different sizes, each until an answer of that size has arrived.
#[derive(Default)]
struct Trials<'a> {
    running: FuturesUnordered<BoxFuture<'a, (u16, Result<Dialed>)>>,
    /// The sizes that may still be answered.
    awaited: BTreeSet<u16>,
    /// The connection with the largest packets that were answered.
    best: Option<Dialed>,
}

impl Dialer {
    /// Returns the connection, or one to the same server for smaller packets if its full packets do not
    /// arrive. The stream over TCP carries packets of any size.
    pub(super) async fn fit(&self, dialed: Dialed) -> Result<Dialed> {
        if dialed.over_tcp {
            return Ok(dialed);
        }
        let step = (ROUND_TRIPS * dialed.rtt()).clamp(MIN_STEP, MAX_STEP);
        let mut smaller = smaller_mtus(dialed.mtu()).peekable();
        let (uplink, server, route) =
            (dialed.uplink.clone(), dialed.server.clone(), dialed.route());
        let mut trials = Trials::default();
        trials.begin(dialed.mtu(), dialed.probe());
        loop {
            tokio::select! {
                Some((mtu, answer)) = trials.running.next() => {
                    trials.awaited.remove(&mtu);
                    match answer {
                        Ok(dialed) => trials.note(dialed),
                        Err(error) if trials.has_failed() => {
                            if smaller.peek().is_none() || !error.is::<TooLarge>() {
                                return Err(error);
                            }
                        }
                        Err(_) => {}
                    }
                    if let Some(best) = trials.take_largest() {
                        return Ok(best);
                    }
                }
                () = sleep(step) => match (trials.best.take(), smaller.next()) {
                    (Some(best), _) => return Ok(best),
                    (None, Some(mtu)) => {
                        let (narrower, server) = (Uplink { mtu, ..uplink.clone() }, &server);
                        trials.begin(mtu, async move {
                            let dialed = self.dial_udp(&narrower, server, route).await?;
                            let mut dialed = dialed.probe().await?;
                            dialed.is_narrower = true;
                            Ok(dialed)
                        });
                    }
                    (None, None) => {}
                },
            }
        }
    }
}

impl<'a> Trials<'a> {
    fn begin(&mut self, mtu: u16, trial: impl Future<Output = Result<Dialed>> + Send + 'a) {
        self.awaited.insert(mtu);
        self.running
            .push(Box::pin(async move { (mtu, trial.await) }));
    }

    fn note(&mut self, answered: Dialed) {
        let best = self.best.as_ref();
        if best.is_none_or(|best| best.mtu() < answered.mtu()) {
            self.best = Some(answered);
        }
    }

    fn has_failed(&self) -> bool {
        self.awaited.is_empty() && self.best.is_none()
    }

    /// Returns the best connection if none for larger packets may be answered.
    fn take_largest(&mut self) -> Option<Dialed> {
        let largest = self.awaited.last().copied().unwrap_or(0);
        self.best.take_if(|best| best.mtu() > largest)
    }
}

//! Keeps in the kernel what a program needs there, although any other program may change it:
//! parameters, firewall rules, addresses, routes, attachments.
//!
//! An [`Item`] says what should be and examines what is. A [`Keeper`] restores items that may be
//! restored and remembers every [`Deviation`]; a [`Watch`] is a thread with a keeper. `hawser doctor`
//! examines the same items without changing anything.

mod filters;
mod firewall;
mod forwarding;
mod names;
mod tunnel;
mod uplink;
mod watch;

pub use filters::{DroppingFilter, Filters, LooseFilter};
pub use firewall::{AllRules, ForwardedPass, NoReversePathRule, Rules, Ruleset, Traffic};
pub use forwarding::Forwarding;
pub use names::NameServer;
pub use tunnel::{InnerFamily, TunnelEnd, TunnelRoutes};
pub use uplink::{OwnArp, UplinkRoute, UplinkState};
pub use watch::Watch;

use crate::clock::unix_ms;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The minimum time between two restorations of the same item, so that this program and another one
/// that wants it otherwise do not change it all the time.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);

/// Something in the kernel that should be in a certain state.
pub trait Item {
    /// Returns the name, which stays the same.
    fn name(&self) -> String;

    /// Returns the interface that is of no use while the item deviates; `None` if the machine is.
    fn interface(&self) -> Option<&str> {
        None
    }

    /// Returns the difference from what should be; `None` if there is none or it cannot be read.
    fn examine(&self) -> Option<Problem>;

    /// Restores the item. Returns false if that is left to a person.
    ///
    /// # Errors
    /// If it cannot be restored.
    fn restore(&mut self) -> Result<bool, String> {
        Ok(false)
    }
}

/// A difference between what should be and what is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The difference and its consequence, as a clause for a person.
    pub what: String,
    /// The command or the change that resolves it, in the imperative.
    pub advice: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.advice)
    }
}

/// A deviation of an item while a program runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deviation {
    /// The name of the item.
    pub name: String,
    /// The interface that is of no use while the item deviates; none if it concerns the machine.
    #[serde(default)]
    pub interface: Option<String>,
    /// The last difference from what should be, with advice while a person has to resolve it.
    pub what: String,
    /// Whether the item is as it should be again.
    pub restored: bool,
    /// The time at which the last deviation was noticed, milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The number of deviations since the program was started.
    pub count: u64,
    /// The number of them that the program has ended. Others were resolved by a person or ended by
    /// themselves.
    #[serde(default)]
    pub restorations: u64,
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deviation {
            what, restorations, ..
        } = self;
        match (self.restored, restorations) {
            (false, _) => write!(f, "NOT AS IT SHOULD BE: {what}"),
            (true, 0) => write!(f, "resolved: {what}"),
            (true, 1) => write!(f, "restored once: {what}"),
            (true, _) => write!(f, "restored {restorations} times: {what}"),
        }
    }
}

/// Restores items and remembers their deviations.
#[derive(Debug, Default)]
pub struct Keeper(BTreeMap<String, State>);

#[derive(Debug, Default)]
struct State {
    deviation: Option<Deviation>,
    /// The last difference without advice.
    difference: String,
    restored_at: Option<Instant>,
}

impl Keeper {
    /// Examines all items, and restores those that may be. Other items are forgotten.
    ///
    /// An item that is restored when it is examined for the first time has been set up, and has not
    /// deviated.
    pub fn keep(&mut self, items: &mut [Box<dyn Item + '_>]) {
        let names: Vec<_> = items.iter().map(|item| item.name()).collect();
        self.0.retain(|name, _| names.contains(name));
        for (name, item) in names.into_iter().zip(items) {
            match self.0.get_mut(&name) {
                Some(state) => state.check(&name, &mut **item),
                None => {
                    let mut state = State::default();
                    if !(item.examine().is_some() && item.restore() == Ok(true)) {
                        state.check(&name, &mut **item);
                    }
                    self.0.insert(name, state);
                }
            }
        }
    }

    /// Returns the deviations, by the names of the items.
    pub fn deviations(&self) -> Vec<Deviation> {
        let states = self.0.values();
        states.filter_map(|state| state.deviation.clone()).collect()
    }
}

impl State {
    fn check(&mut self, name: &str, item: &mut dyn Item) {
        let Some(problem) = item.examine() else {
            self.record_restored(name);
            return;
        };
        self.difference.clone_from(&problem.what);
        let is_new = self.deviation.as_ref().is_none_or(|known| known.restored);
        let since = self.restored_at.map(|at| at.elapsed());
        let may_restore = since.is_none_or(|since| since >= RESTORE_PAUSE);
        let outcome = may_restore.then(|| item.restore());
        let what = match &outcome {
            Some(Ok(true)) => problem.what,
            Some(Err(error)) => format!("{problem}, as it cannot be restored: {error}"),
            Some(Ok(false)) | None => problem.to_string(),
        };
        if is_new {
            warn!(item = name, "{what}");
        }
        let (count, restorations) = self
            .deviation
            .as_ref()
            .map_or((0, 0), |known| (known.count, known.restorations));
        let is_restored = outcome == Some(Ok(true));
        let since_unix_ms = match &self.deviation {
            Some(known) if !is_new => known.since_unix_ms,
            _ => unix_ms(),
        };
        self.deviation = Some(Deviation {
            name: name.to_owned(),
            interface: item.interface().map(str::to_owned),
            what,
            restored: false,
            since_unix_ms,
            count: count + u64::from(is_new),
            restorations: restorations + u64::from(is_restored),
        });
        if is_restored {
            self.restored_at = Some(Instant::now());
            self.record_restored(name);
        }
    }

    fn record_restored(&mut self, name: &str) {
        let deviation = self.deviation.as_mut();
        if let Some(deviation) = deviation.filter(|known| !known.restored) {
            deviation.restored = true;
            deviation.what.clone_from(&self.difference);
            info!(item = name, "as it should be again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A number that should be zero.
    struct Number {
        value: Rc<Cell<u8>>,
        restores: Result<bool, String>,
    }

    impl Item for Number {
        fn name(&self) -> String {
            "number".to_owned()
        }

        fn examine(&self) -> Option<Problem> {
            (self.value.get() != 0).then(|| Problem {
                what: format!("it is {}", self.value.get()),
                advice: "set it to 0".to_owned(),
            })
        }

        fn restore(&mut self) -> Result<bool, String> {
            if self.restores == Ok(true) {
                self.value.set(0);
            }
            self.restores.clone()
        }
    }

    fn number(restores: Result<bool, String>) -> (Rc<Cell<u8>>, [Box<dyn Item>; 1]) {
        let value = Rc::new(Cell::new(0));
        let item = Number {
            value: Rc::clone(&value),
            restores,
        };
        (value, [Box::new(item)])
    }

    #[test]
    fn a_deviation_is_restored_and_counted() {
        let (value, mut items) = number(Ok(true));
        let mut keeper = Keeper::default();
        value.set(1);
        keeper.keep(&mut items);
        assert_eq!((value.get(), keeper.deviations()), (0, vec![]), "is set up");
        value.set(2);
        keeper.keep(&mut items);
        let found = keeper.deviations();
        assert_eq!(value.get(), 0);
        assert!(found[0].restored && found[0].count == 1 && found[0].what == "it is 2");
        value.set(3);
        keeper.keep(&mut items);
        assert_eq!(value.get(), 3, "two programs do not fight all the time");
        let found = keeper.deviations();
        assert!(!found[0].restored && found[0].count == 2, "{found:?}");
        value.set(0);
        keeper.keep(&mut items);
        let found = keeper.deviations()[0].to_string();
        assert_eq!(found, "restored once: it is 3", "another one set it to 0");
    }

    #[test]
    fn what_is_not_restored_is_said_until_it_is_resolved() {
        for (restores, words) in [
            (Ok(false), "it is 1: set it to 0"),
            (Err("no root".to_owned()), "cannot be restored: no root"),
        ] {
            let (value, mut items) = number(restores);
            let mut keeper = Keeper::default();
            value.set(1);
            keeper.keep(&mut items);
            keeper.keep(&mut items);
            let found = keeper.deviations();
            assert!(found[0].what.contains(words), "{found:?}");
            assert!(!found[0].restored && found[0].count == 1);
            value.set(0);
            keeper.keep(&mut items);
            let found = keeper.deviations()[0].to_string();
            assert_eq!(found, "resolved: it is 1");
        }
    }

    #[test]
    fn an_item_that_is_kept_no_longer_has_no_deviation() {
        let (value, mut items) = number(Ok(false));
        let mut keeper = Keeper::default();
        value.set(1);
        keeper.keep(&mut items);
        keeper.keep(&mut []);
        assert!(keeper.deviations().is_empty());
    }
}

//! Sessions that differ in their recovery, for tests that hold for all of them.

use hawser_xnc::Config;
use hawser_xnc::experiment::{Experiment, RecoveryMethod};
use std::time::Duration;

/// Returns a session that recovers packets in this way.
pub(crate) fn recovering(recovery: RecoveryMethod) -> Config {
    Config {
        experiment: Experiment {
            recovery,
            ..Experiment::default()
        },
        ..Config::default()
    }
}

/// Returns a session that repeats lost packets until they arrive, and delivers in order.
pub(crate) fn reliable() -> Config {
    Config {
        reorder: Some(Duration::MAX),
        ..recovering(RecoveryMethod::Retransmit)
    }
}

/// Returns a session for each way to recover packets, the default first.
pub(crate) fn configs() -> Vec<Config> {
    let uncoded = recovering(RecoveryMethod::OneShot { coded: false });
    let none = recovering(RecoveryMethod::None);
    vec![Config::default(), uncoded, reliable(), none]
}

//! The trials: a contender on a drive, as often as it is repeated.

use super::contender::{self, Contender, DEFAULT, Sender};
use super::drive::{Drive, Set, known};
use crate::experiment::matches;
use anyhow::{Result, ensure};
use std::fmt;
use std::sync::Arc;

/// A contender on a drive, or on one path of the drive.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(super) contender: Contender,
    pub(super) drive: Arc<Drive>,
    /// The number of the drive, from which the seed of its links follows.
    number: usize,
    /// The path, if only one is used.
    pub(super) path: Option<usize>,
    /// The number of earlier runs of the same trial, with lower seeds.
    pub(super) repetition: u32,
}

/// Returns the trials whose names a pattern matches: `CONTENDER/DRIVE`, without the path. An alternative
/// of the pattern without a slash selects its contenders on the drives of the default sets. The trials
/// on a drive follow each other, so that whatever else the machine does affects the processor time of
/// all.
pub(super) fn chosen(pattern: Option<&str>, drives: &[Arc<Drive>]) -> Result<Vec<Trial>> {
    let is_wanted = |contender: Contender, drive: &Drive| {
        let is_default = drive.set.is_default();
        let Some(pattern) = pattern else {
            return is_default && DEFAULT.contains(&contender);
        };
        let name = contender.to_string();
        pattern.split(',').any(|alternative| {
            if alternative.contains('/') {
                matches(alternative, &format!("{name}/{}", drive.name))
            } else {
                is_default && matches(alternative, &name)
            }
        })
    };
    let mut trials = Vec::new();
    for set in Set::ALL {
        for (number, drive) in drives.iter().enumerate() {
            for contender in contender::all() {
                if drive.set == set && is_wanted(contender, drive) {
                    trials.extend(Trial::of(contender, number, drive));
                }
            }
        }
    }
    ensure!(
        !trials.is_empty(),
        "no case matches {:?}; {}; the cases are: {}",
        pattern.unwrap_or("*"),
        known(drives.iter().map(Arc::as_ref)),
        contender::all()
            .map(|contender| contender.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    );
    Ok(trials)
}

impl Trial {
    /// Returns the trials of a contender on a drive: one for each path if it uses them one by one.
    pub(super) fn of(contender: Contender, number: usize, drive: &Arc<Drive>) -> Vec<Trial> {
        let trial = |path| Trial {
            contender,
            drive: Arc::clone(drive),
            number,
            path,
            repetition: 0,
        };
        match contender.sender {
            Sender::Only(technology) => drive.paths_on(technology).map(Some).map(trial).collect(),
            Sender::Single => (0..drive.paths()).map(Some).map(trial).collect(),
            Sender::Tunnel(_) | Sender::Bonding | Sender::Oracle => vec![trial(None)],
        }
    }

    pub(super) fn repeated(self, repetitions: u32) -> impl Iterator<Item = Trial> {
        (0..repetitions).map(move |repetition| Trial {
            repetition,
            ..self.clone()
        })
    }

    /// Returns the seed of the links, which is the same for all contenders.
    pub(super) fn seed(&self, of_run: u64) -> u64 {
        let seed = of_run.wrapping_add(self.repetition.into());
        seed.wrapping_mul(1_000_003)
            .wrapping_add(self.number as u64)
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.contender, self.drive.name)?;
        if let Some(path) = self.path {
            write!(f, ", path {}", path + 1)?;
        }
        match self.repetition {
            0 => Ok(()),
            repetition => write!(f, ", repetition {}", repetition + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive;
    use super::*;

    #[test]
    fn patterns_choose_contenders_and_drives() {
        let drives: Vec<Arc<Drive>> = (0..12)
            .map(|seed| Arc::new(Drive::generated(seed, false)))
            .collect();
        let count = |pattern: &str| chosen(Some(pattern), &drives).map_or(0, |trials| trials.len());
        assert_eq!(count("xnc"), 12);
        assert_eq!(count("xnc/drawn-00*,oracle/*-011"), 11);
        assert_eq!(count("xnc/*"), 12);
        assert_eq!(count("xnc-without*"), 120);
        assert_eq!(count("xnc-without*/drawn-000"), 10);
        assert_eq!(count("minrtt-w*/drawn-000"), 1, "with frame dropping");
        assert_eq!(count("minrtt*/drawn-000"), 5, "and at three bitrates");
        assert_eq!(count("fec/drawn-0?0"), 2);
        assert_eq!(count("single/drawn-000"), 4, "each path by itself");
        assert_eq!(count("nothing"), 0);
        assert_eq!(
            count("5g-only/*"),
            0,
            "the technology of drawn drives is not known"
        );
        let error = chosen(Some("xnc/drive-00*"), &drives)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("there are no recorded drives in "),
            "{error}"
        );
        assert!(
            error.contains("are drawn-000 to drawn-011, such as in --case 'xnc/drawn-000'"),
            "{error}"
        );
        let trials = chosen(Some("xnc,minrtt"), &drives).unwrap();
        let first: Vec<_> = trials[..3].iter().map(Trial::to_string).collect();
        assert_eq!(
            first,
            ["xnc/drawn-000", "minrtt/drawn-000", "xnc/drawn-001"]
        );
        let default = chosen(None, &drives).unwrap();
        assert!(
            default
                .iter()
                .all(|trial| DEFAULT.contains(&trial.contender))
        );

        let reversed = drive::further(&[(*drives[0]).clone()]).unwrap();
        let both = [Arc::clone(&drives[0]), Arc::new(reversed[0].clone())];
        let count = |pattern: &str| chosen(Some(pattern), &both).map_or(0, |trials| trials.len());
        assert_eq!(count("xnc"), 1, "the default set");
        assert_eq!(count("xnc/*"), 2);
        assert_eq!(count("xnc/reversed-*"), 1);
    }
}

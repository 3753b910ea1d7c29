use super::parameter::{InvalidParameter, TIME_MS, kilobytes, set};
use super::{ConfigError, Source};
use hawser_xnc::Config;
use serde::{Deserialize, Serialize};
use std::convert::identity;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;

/// Parameters of the coded transport for experiments and tests: `[tuning]` of a file that only
/// `hawser tunnel server --tuning` reads. They have the names and the meaning of the fields of
/// [`hawser_xnc::Config`]. A parameter that is not given has the default of
/// the scheme.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    /// The time without an acknowledgement after which a packet is considered lost.
    pub loss_threshold_ms: Option<u64>,
    /// The same while packets wait for an uplink.
    pub loss_threshold_waiting_ms: Option<u64>,
    /// The largest number of packets in an encoding range, 1 to 63.
    pub range_packets: Option<usize>,
    /// The delay beyond the expected acknowledgement after which a packet is considered lost, if
    /// its frame lacks little or its uplink is quiet.
    pub straggler_delay_ms: Option<u64>,
    /// The largest share of a frame's packets that counts as little.
    pub straggler_share: Option<f64>,
    /// The longest time from the first packet of an encoding range to its last.
    pub range_span_ms: Option<u64>,
    /// The time after which a waiting video frame is not begun.
    pub max_frame_queue_delay_ms: Option<u64>,
    /// The additional time for each frame that was dropped since the last one was sent.
    pub frame_queue_delay_step_ms: Option<u64>,
    /// The share of an uplink's congestion window that may wait in its connection.
    pub connection_share: Option<f64>,
    /// An uplink gets no more data than it drains within its minimum round-trip time plus this
    /// time.
    pub queue_target_ms: Option<u64>,
    /// The same for packets of other flows while there is a video.
    pub queue_target_shared_ms: Option<u64>,
    /// The queueing delay above which packets of a flow are dropped or marked (CoDel).
    pub codel_target_ms: Option<u64>,
    /// The time for which the delay has to stay above the target before that (CoDel).
    pub codel_interval_ms: Option<u64>,
    /// The queueing delay above which packets marked ECT(1) are marked (L4S).
    pub l4s_threshold_ms: Option<u64>,
    /// The queueing delay above which an uplink gets no new packets.
    pub max_path_backlog_ms: Option<u64>,
    /// The largest share of the coded packets that one path gets, with `xnc-paper`.
    pub path_share: Option<f64>,
    /// The time without an acknowledgement after which an uplink is quiet.
    pub quiet_after_ms: Option<u64>,
    /// The time without an acknowledgement, beyond the minimum round-trip time, after which
    /// recovery packets use a path only as the last choice.
    pub delivered_within_ms: Option<u64>,
    /// The largest number of shots for the same packets.
    pub shots: Option<u32>,
    /// The time for which losses of a range are collected before a shot.
    pub recovery_delay_ms: Option<u64>,
    /// The time that a receiver waits before it acknowledges.
    pub ack_delay_ms: Option<u64>,
    /// The interval of the single packets by which a silent path is probed.
    pub probe_silent_ms: Option<u64>,
    /// The largest queue for the paths, in kilobytes.
    pub queue_kb: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tuning: Spanned<Tuning>,
}

impl Tuning {
    /// Reads and validates the file of an experiment.
    pub(super) fn read(path: &Path) -> Result<Tuning, ConfigError> {
        let source = Source::read(path)?;
        let File { tuning } = source.parse()?;
        let checked = tuning.get_ref().apply_to(&mut Config::default());
        checked.map_err(|error| source.wrong(&tuning, error.to_string()))?;
        Ok(tuning.into_inner())
    }

    /// Sets the given parameters.
    pub(super) fn apply_to(&self, config: &mut Config) -> Result<(), InvalidParameter> {
        self.set_times(config)?;
        set!(self, config, 0.0..=1.0, identity,
            connection_share => connection_share, straggler_share => straggler_share);
        set!(self, config, 1.0..=10.0, identity, path_share => path_share);
        set!(self, config, 1..=63, identity, range_packets => range_packets);
        set!(self, config, 1..=10, identity, shots => shots);
        set!(self, config, 64..=65_536, kilobytes, queue_kb => queue_limit);
        Ok(())
    }

    fn set_times(&self, config: &mut Config) -> Result<(), InvalidParameter> {
        set!(self, config, TIME_MS, Duration::from_millis,
            loss_threshold_ms => loss_threshold,
            loss_threshold_waiting_ms => loss_threshold_waiting,
            straggler_delay_ms => straggler_delay,
            range_span_ms => range_span,
            max_frame_queue_delay_ms => max_frame_queue_delay,
            frame_queue_delay_step_ms => frame_queue_delay_step,
            queue_target_ms => queue_target,
            queue_target_shared_ms => queue_target_shared,
            codel_target_ms => codel_target,
            codel_interval_ms => codel_interval,
            l4s_threshold_ms => l4s_threshold,
            max_path_backlog_ms => max_path_backlog,
            quiet_after_ms => quiet_after,
            delivered_within_ms => delivered_within,
            recovery_delay_ms => recovery_delay,
            ack_delay_ms => ack_delay,
            probe_silent_ms => probe_silent,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a value that is valid for a parameter and not its default.
    fn other(key: &str) -> f64 {
        match key {
            key if key.ends_with("_ms") => 77.0,
            "queue_kb" => 777.0,
            "connection_share" | "straggler_share" => 0.7,
            "path_share" => 1.7,
            _ => 7.0,
        }
    }

    #[test]
    fn each_key_sets_the_field_of_its_name() {
        let keys = serde_json::to_value(Tuning::default()).unwrap();
        let fields = |config: &Config| -> Vec<String> {
            let text = format!("{config:?}");
            text.split(", ").map(str::to_owned).collect()
        };
        let default = fields(&Config::default());
        for key in keys.as_object().unwrap().keys() {
            let tuning: Tuning = toml::from_str(&format!("{key} = {}", other(key))).unwrap();
            let mut config = Config::default();
            tuning.apply_to(&mut config).unwrap();
            let mut changed = fields(&config);
            changed.retain(|field| !default.contains(field));
            let field = key
                .trim_end_matches("_ms")
                .replace("queue_kb", "queue_limit");
            assert_eq!(changed.len(), 1, "{key}: {changed:?}");
            assert!(changed[0].starts_with(&format!("{field}: ")), "{changed:?}");
        }
    }

    #[test]
    fn a_file_with_an_invalid_parameter_is_rejected_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tuning.toml");
        let read = |text| {
            std::fs::write(&path, text).unwrap();
            Tuning::read(&path)
        };
        let tuning = read("[tuning]\nprobe_silent_ms = 10000\n").unwrap();
        assert_eq!(tuning.probe_silent_ms, Some(10_000));
        for (text, expected) in [
            ("\n[tuning]\nshots = 11", "line 2: shots is 1 to 10"),
            ("[tuning]\nscheme = \"fec\"", "unknown field `scheme`"),
            ("[coding]\n[tuning]", "unknown field `coding`"),
            ("", "missing field `tuning`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

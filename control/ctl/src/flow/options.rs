use crate::text;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use hawser_model::resource::{Flow, Mode, Selector, Trigger};

/// The properties of a flow except its name, its tenant and its nodes.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Options {
    /// Destination addresses of the packets: a prefix such as 203.0.113.0/24
    #[arg(long, value_name = "PREFIX")]
    destination: Option<String>,
    /// Protection of the flow when it needs help [default: auto]
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Protocol of the packets: any, tcp, udp, icmp, icmpv6 or a number
    #[arg(long, value_parser = parse_protocol)]
    protocol: Option<Protocol>,
    /// Source port of the packets, or the first and the last separated by a dash
    #[arg(long, value_name = "PORTS", value_parser = text::parse_range)]
    source_ports: Option<(u16, u16)>,
    /// Destination port of the packets, or the first and the last separated by a dash
    #[arg(long, value_name = "PORTS", value_parser = text::parse_range)]
    destination_ports: Option<(u16, u16)>,
    /// Paths that the flow may use: numbers separated by commas, or all
    #[arg(long, value_name = "NUMBERS", value_parser = parse_paths)]
    paths: Option<Paths>,
    /// Send copies as they are, without headers and tags: IPv4 between adjacent nodes only
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    transparent: Option<bool>,
    #[command(flatten)]
    trigger: TriggerOptions,
    #[command(flatten)]
    pruning: PruningOptions,
}

/// The condition under which the flow needs help.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "When the flow needs help (always, without a trigger)")]
struct TriggerOptions {
    /// Destination addresses of the viewer's requests: a prefix that contains the source of the
    /// flow
    #[arg(long, value_name = "PREFIX")]
    trigger_destination: Option<String>,
    /// Protocol of the viewer's requests: any, tcp, udp or a number
    #[arg(long, value_name = "PROTOCOL", value_parser = parse_protocol)]
    trigger_protocol: Option<Protocol>,
    /// Destination port of the viewer's requests, or the first and the last separated by a dash
    #[arg(long, value_name = "PORTS", value_parser = text::parse_range)]
    trigger_ports: Option<(u16, u16)>,
    /// Smallest and largest payload of a request, bytes [default: 1-200]
    #[arg(long, value_name = "BYTES", value_parser = text::parse_range)]
    request_bytes: Option<(u16, u16)>,
    /// Interval since the previous request from which a request is late, milliseconds [default:
    /// 150]
    #[arg(long, value_name = "MS")]
    late_after_ms: Option<u32>,
    /// Number of consecutive late requests that trigger help [default: 3]
    #[arg(long, value_name = "REQUESTS")]
    consecutive: Option<u32>,
    /// Remove the trigger: the flow always needs help
    #[arg(long, conflicts_with_all = ["trigger_destination", "trigger_protocol", "trigger_ports", "request_bytes", "late_after_ms", "consecutive"])]
    no_trigger: bool,
}

/// The parameters for judging paths.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Judging of paths (defaults depend on the mode)")]
struct PruningOptions {
    /// Maximum delay of a copy after the first one at which it is still useful, milliseconds
    #[arg(long, value_name = "MS")]
    tolerance_ms: Option<f64>,
    /// Size of the sliding window in mode `successive`, packets [default: those of a frame, or 100 until the requests of a
    /// trigger have told their number]
    #[arg(long, value_name = "PACKETS")]
    window: Option<u32>,
    /// Maximum average number of copies per packet in the modes `auto` and `evidence`
    #[arg(long, value_name = "COPIES")]
    budget: Option<f64>,
    /// Tolerated fraction of damaged frames in the modes `auto` and `evidence`, such as 0.01
    #[arg(long, value_name = "RATIO")]
    tolerated_damage: Option<f64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ModeArg {
    /// Take the cheapest paths that meet the aim: one, another, or copies on as few as help
    Auto,
    /// Stay on the default route
    Single,
    /// Move to the path with the smallest round-trip time
    Redirect,
    /// Replicate on all paths
    Replicate,
    /// Replicate; Algorithm 1 of Qian et al. removes paths
    Successive,
    /// Replicate; paths that do not contribute enough are removed and restored
    Evidence,
}

/// An IP protocol number; `None` for any.
#[derive(Debug, Clone, Copy)]
struct Protocol(Option<u8>);

/// Path numbers; empty for all.
#[derive(Debug, Clone)]
struct Paths(Vec<u8>);

impl Options {
    /// Returns the destination, which a new flow requires.
    pub(crate) fn required(&self) -> Result<String> {
        let destination = self.destination.clone();
        destination.context("the packets of the flow are not specified: give --destination PREFIX")
    }

    /// Applies the options that are given.
    pub(crate) fn change(&self, flow: &mut Flow) -> Result<()> {
        set(&mut flow.select.destination, self.destination.clone());
        set(&mut flow.mode, self.mode.map(Mode::from));
        set(
            &mut flow.select.protocol,
            self.protocol.map(|protocol| protocol.0),
        );
        set(&mut flow.select.source_ports, self.source_ports.map(Some));
        set(
            &mut flow.select.destination_ports,
            self.destination_ports.map(Some),
        );
        set(&mut flow.transparent, self.transparent);
        set(&mut flow.paths, self.paths.clone().map(|paths| paths.0));
        let (judged, given) = (&mut flow.pruning, &self.pruning);
        set(&mut judged.tolerance_ms, given.tolerance_ms.map(Some));
        set(&mut judged.window_packets, given.window.map(Some));
        set(&mut judged.budget_ratio, given.budget.map(Some));
        set(
            &mut judged.tolerated_damage_ratio,
            given.tolerated_damage.map(Some),
        );
        self.trigger.change(&mut flow.trigger)
    }
}

impl TriggerOptions {
    fn change(&self, trigger: &mut Option<Trigger>) -> Result<()> {
        if self.no_trigger {
            *trigger = None;
        }
        if !self.is_given() {
            return Ok(());
        }
        let trigger = self.present(trigger)?;
        set(
            &mut trigger.select.destination,
            self.trigger_destination.clone(),
        );
        set(
            &mut trigger.select.protocol,
            self.trigger_protocol.map(|protocol| protocol.0),
        );
        set(
            &mut trigger.select.destination_ports,
            self.trigger_ports.map(Some),
        );
        set(&mut trigger.request_bytes, self.request_bytes);
        set(&mut trigger.late_after_ms, self.late_after_ms);
        set(&mut trigger.consecutive, self.consecutive);
        Ok(())
    }

    /// Returns the trigger of a flow, which is added if it has none.
    fn present<'a>(&self, trigger: &'a mut Option<Trigger>) -> Result<&'a mut Trigger> {
        match (trigger, &self.trigger_destination) {
            (Some(trigger), _) => Ok(trigger),
            (missing, Some(destination)) => Ok(missing.insert(new_trigger(destination))),
            (None, None) => {
                bail!("the flow has no trigger yet: give --trigger-destination PREFIX as well")
            }
        }
    }

    fn is_given(&self) -> bool {
        self.trigger_destination.is_some()
            || self.trigger_protocol.is_some()
            || self.trigger_ports.is_some()
            || self.request_bytes.is_some()
            || self.late_after_ms.is_some()
            || self.consecutive.is_some()
    }
}

fn new_trigger(destination: &str) -> Trigger {
    Trigger {
        select: Selector {
            destination: destination.to_owned(),
            protocol: None,
            source_ports: None,
            destination_ports: None,
        },
        request_bytes: Trigger::request_bytes(),
        late_after_ms: Trigger::late_after_ms(),
        consecutive: Trigger::consecutive(),
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Auto => Mode::Auto,
            ModeArg::Single => Mode::Single,
            ModeArg::Redirect => Mode::Redirect,
            ModeArg::Replicate => Mode::Replicate,
            ModeArg::Successive => Mode::Successive,
            ModeArg::Evidence => Mode::Evidence,
        }
    }
}

impl From<Mode> for ModeArg {
    fn from(mode: Mode) -> ModeArg {
        match mode {
            Mode::Auto => ModeArg::Auto,
            Mode::Single => ModeArg::Single,
            Mode::Redirect => ModeArg::Redirect,
            Mode::Replicate => ModeArg::Replicate,
            Mode::Successive => ModeArg::Successive,
            Mode::Evidence => ModeArg::Evidence,
        }
    }
}

/// The protocols known by name (IANA protocol numbers).
const PROTOCOLS: [(&str, u8); 4] = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58)];

/// Returns the name of a protocol.
pub(crate) fn name_of(protocol: u8) -> String {
    let known = PROTOCOLS.iter().find(|(_, number)| *number == protocol);
    known.map_or_else(
        || format!("protocol {protocol}"),
        |(name, _)| (*name).to_owned(),
    )
}

fn parse_protocol(text: &str) -> Result<Protocol, String> {
    let known = PROTOCOLS
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, number)| *number);
    match (text, known) {
        ("any", _) => Ok(Protocol(None)),
        (_, Some(number)) => Ok(Protocol(Some(number))),
        _ => text.parse().map(|number| Protocol(Some(number))).map_err(|_| {
            format!("{text:?} is not a protocol: write any, tcp, udp, icmp, icmpv6 or a number up to 255")
        }),
    }
}

fn parse_paths(text: &str) -> Result<Paths, String> {
    if text == "all" {
        return Ok(Paths(Vec::new()));
    }
    let number = |word: &str| match word.trim().parse() {
        Ok(number @ 1..=8) => Ok(number),
        _ => Err(format!(
            "{word:?} is not a path: write numbers 1 to 8 with commas between them, or `all`"
        )),
    };
    text.split(',')
        .map(number)
        .collect::<Result<_, _>>()
        .map(Paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};

    fn options(words: &[&str]) -> Options {
        let command = Options::augment_args(clap::Command::new("set").no_binary_name(true));
        Options::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    fn flow() -> Flow {
        serde_json::from_str(
            r#"{ "name": "stage", "tenant": "acme", "ingress": "edge-1", "egress": "edge-2", "mode": "evidence",
                 "select": { "destination": "203.0.113.0/24", "protocol": 6 }, "paths": [1, 2] }"#,
        )
        .unwrap()
    }

    #[test]
    fn options_that_are_not_given_keep_their_values() {
        let mut changed = flow();
        options(&["--mode", "redirect", "--tolerance-ms", "7.5"])
            .change(&mut changed)
            .unwrap();
        let mut expected = flow();
        expected.mode = Mode::Redirect;
        expected.pruning.tolerance_ms = Some(7.5);
        assert_eq!(changed, expected);
    }

    #[test]
    fn a_selection_can_be_widened_again() {
        let mut changed = flow();
        options(&["--protocol", "any", "--paths", "all"])
            .change(&mut changed)
            .unwrap();
        assert_eq!((changed.select.protocol, changed.paths.len()), (None, 0));
    }

    #[test]
    fn a_new_trigger_needs_a_destination() {
        let mut changed = flow();
        assert!(
            options(&["--consecutive", "5"])
                .change(&mut changed)
                .is_err()
        );
        let words = [
            "--trigger-destination",
            "198.51.100.7",
            "--trigger-ports",
            "14748",
            "--consecutive",
            "5",
        ];
        options(&words).change(&mut changed).unwrap();
        let trigger = changed.trigger.as_ref().unwrap();
        assert_eq!((trigger.consecutive, trigger.late_after_ms), (5, 150));
        assert_eq!(trigger.select.destination_ports, Some((14748, 14748)));
        options(&["--late-after-ms", "200"])
            .change(&mut changed)
            .unwrap();
        assert_eq!(changed.trigger.as_ref().unwrap().consecutive, 5);
        options(&["--no-trigger"]).change(&mut changed).unwrap();
        assert_eq!(changed.trigger, None);
    }

    #[test]
    fn protocols_have_names_and_numbers() {
        assert_eq!(parse_protocol("udp").unwrap().0, Some(17));
        assert_eq!(parse_protocol("132").unwrap().0, Some(132));
        assert_eq!(parse_protocol("any").unwrap().0, None);
        assert!(parse_protocol("256").is_err());
        assert_eq!(name_of(17), "udp");
        assert_eq!(name_of(132), "protocol 132");
    }
}

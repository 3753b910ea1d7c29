use crate::text;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use hawser_control::resource::{Flow, Mode, Selector, Trigger};

/// What a flow is, but for its name, its tenant and its ends.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Options {
    /// Packets to these addresses: a prefix such as 203.0.113.0/24
    #[arg(long, value_name = "PREFIX")]
    destination: Option<String>,
    /// What is done when the flow needs help
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Only of this protocol: any, tcp, udp, icmp, icmpv6 or a number
    #[arg(long, value_parser = parse_protocol)]
    protocol: Option<Protocol>,
    /// Only from this port, or first and last with a dash between them
    #[arg(long, value_name = "PORTS", value_parser = text::parse_range)]
    source_ports: Option<(u16, u16)>,
    /// Only to this port, or first and last with a dash between them
    #[arg(long, value_name = "PORTS", value_parser = text::parse_range)]
    destination_ports: Option<(u16, u16)>,
    /// The paths that may be used: numbers with commas between them, or all
    #[arg(long, value_name = "NUMBERS", value_parser = parse_paths)]
    paths: Option<Paths>,
    #[command(flatten)]
    trigger: TriggerOptions,
    #[command(flatten)]
    elimination: EliminationOptions,
}

/// When the flow needs help.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "When the flow needs help: without a trigger, always")]
struct TriggerOptions {
    /// Where the viewer's requests go: a prefix that has the source in it
    #[arg(long, value_name = "PREFIX")]
    trigger_destination: Option<String>,
    /// Only of this protocol: any, tcp, udp or a number
    #[arg(long, value_name = "PROTOCOL", value_parser = parse_protocol)]
    trigger_protocol: Option<Protocol>,
    /// Only to this port, or first and last with a dash between them
    #[arg(long, value_name = "PORTS", value_parser = text::parse_range)]
    trigger_ports: Option<(u16, u16)>,
    /// Least and largest payload of a request [default: 1-200]
    #[arg(long, value_name = "BYTES", value_parser = text::parse_range)]
    request_bytes: Option<(u16, u16)>,
    /// A request is late so long after the one before [default: 150]
    #[arg(long, value_name = "MS")]
    late_after_ms: Option<u32>,
    /// So many late ones in a row [default: 3]
    #[arg(long, value_name = "REQUESTS")]
    in_a_row: Option<u32>,
    /// The flow always needs help
    #[arg(long, conflicts_with_all = ["trigger_destination", "trigger_protocol", "trigger_ports", "request_bytes", "late_after_ms", "in_a_row"])]
    no_trigger: bool,
}

/// How paths are judged.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "How paths are judged: what is not given is left to the mode")]
struct EliminationOptions {
    /// So much later than the first a copy may come and be of use
    #[arg(long, value_name = "MS")]
    tolerance_ms: Option<f64>,
    /// Packets in the sliding window of `successive`
    #[arg(long, value_name = "PACKETS")]
    window: Option<u32>,
    /// Copies that a packet may have on average in `evidence`
    #[arg(long, value_name = "COPIES")]
    budget: Option<f64>,
    /// The part of frames that may be damaged in `evidence`, such as 0.01
    #[arg(long, value_name = "RATIO")]
    tolerated_damage: Option<f64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ModeArg {
    /// Nothing
    Single,
    /// It moves to the path with the smallest round-trip time
    Redirect,
    /// It is replicated on all paths
    Replicate,
    /// Replicated; Algorithm 1 of Qian et al. removes paths
    Successive,
    /// Replicated; paths that the evidence speaks against are removed and come back
    Evidence,
}

/// None: any.
#[derive(Debug, Clone, Copy)]
struct Protocol(Option<u8>);

/// Empty: all.
#[derive(Debug, Clone)]
struct Paths(Vec<u8>);

impl Options {
    /// What a flow cannot be without.
    pub(crate) fn of_a_new_flow(&self) -> Result<(String, Mode)> {
        let destination = self.destination.clone();
        let destination = destination.context("which packets? Give --destination PREFIX")?;
        let mode = self
            .mode
            .context("what is to be done for the flow? Give --mode, for example evidence")?;
        Ok((destination, mode.into()))
    }

    /// Changes what is given.
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
        set(&mut flow.paths, self.paths.clone().map(|paths| paths.0));
        let (judged, given) = (&mut flow.elimination, &self.elimination);
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
        let trigger = match (trigger, &self.trigger_destination) {
            (Some(trigger), _) => trigger,
            (missing, Some(destination)) => missing.insert(new_trigger(destination)),
            (None, None) => {
                bail!("the flow has no trigger yet: give --trigger-destination PREFIX as well")
            }
        };
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
        set(&mut trigger.in_a_row, self.in_a_row);
        Ok(())
    }

    fn is_given(&self) -> bool {
        self.trigger_destination.is_some()
            || self.trigger_protocol.is_some()
            || self.trigger_ports.is_some()
            || self.request_bytes.is_some()
            || self.late_after_ms.is_some()
            || self.in_a_row.is_some()
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
        in_a_row: Trigger::in_a_row(),
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
            Mode::Single => ModeArg::Single,
            Mode::Redirect => ModeArg::Redirect,
            Mode::Replicate => ModeArg::Replicate,
            Mode::Successive => ModeArg::Successive,
            Mode::Evidence => ModeArg::Evidence,
        }
    }
}

/// Protocols that have a name here (IANA protocol numbers).
const PROTOCOLS: [(&str, u8); 4] = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58)];

/// What a protocol is called.
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
            format!("{text:?} is no protocol: write any, tcp, udp, icmp, icmpv6 or a number up to 255")
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
            "{word:?} is no path: write numbers 1 to 8 with commas between them, or all"
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
    fn what_is_not_given_stays() {
        let mut changed = flow();
        options(&["--mode", "redirect", "--tolerance-ms", "7.5"])
            .change(&mut changed)
            .unwrap();
        let mut expected = flow();
        expected.mode = Mode::Redirect;
        expected.elimination.tolerance_ms = Some(7.5);
        assert_eq!(changed, expected);
    }

    #[test]
    fn what_was_narrowed_can_be_widened() {
        let mut changed = flow();
        options(&["--protocol", "any", "--paths", "all"])
            .change(&mut changed)
            .unwrap();
        assert_eq!((changed.select.protocol, changed.paths.len()), (None, 0));
    }

    #[test]
    fn a_trigger_begins_with_where_requests_go() {
        let mut changed = flow();
        assert!(options(&["--in-a-row", "5"]).change(&mut changed).is_err());
        let words = [
            "--trigger-destination",
            "198.51.100.7",
            "--trigger-ports",
            "14748",
            "--in-a-row",
            "5",
        ];
        options(&words).change(&mut changed).unwrap();
        let trigger = changed.trigger.as_ref().unwrap();
        assert_eq!((trigger.in_a_row, trigger.late_after_ms), (5, 150));
        assert_eq!(trigger.select.destination_ports, Some((14748, 14748)));
        options(&["--late-after-ms", "200"])
            .change(&mut changed)
            .unwrap();
        assert_eq!(changed.trigger.as_ref().unwrap().in_a_row, 5);
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

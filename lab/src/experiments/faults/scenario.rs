use crate::emulator::EmulatedPath;
use anyhow::Result;
use hawser_netem::{Delay, LinkConfig, Loss, Order, Probability, Reorder, Span};
use hawser_testbed::edges::{Cover, Outer, Replication, Sender};
use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_units::PathSet;
use std::fmt;
use std::time::Duration;

/// The delay of the faster path.
const FAST: Duration = Duration::from_millis(1);

/// The additional delay of the other path, unless the skew is the fault.
const SLOWER_BY: Duration = Duration::from_millis(4);

/// The additional delay of reordered packets: enough for the copy on the other path to overtake
/// them.
const REORDER_DELAY: Duration = Duration::from_millis(10);

/// A fault with a form of replication.
#[derive(PartialEq, Eq)]
pub(in crate::experiments) struct Scenario {
    pub(in crate::experiments) name: &'static str,
    pub(in crate::experiments) fault: Fault,
    form: Form,
}

/// The fault of path 1, the default route, in both directions. Path 2 loses no packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::experiments) enum Fault {
    None,
    Cut,
    Flapping,
    Lossy {
        percent: u8,
    },
    Reordering {
        percent: u8,
    },
    /// The path is faster by this time and loses packets, so that the copy on the other path
    /// arrives late, after newer packets.
    Ahead {
        ms: u64,
    },
    /// The path is slower by this time.
    Late {
        ms: u64,
    },
    /// The path changes a byte of the payload of packets.
    Corrupting {
        percent: u8,
    },
}

/// The form of replication.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Traffic through the ingress edge, encapsulated.
    Transit,
    /// Like `Transit`, with tags that cover the whole packet.
    TransitWhole,
    /// Like `Transit`, with IPv6 outer headers.
    TransitV6,
    /// Traffic that the ingress edge itself sends, encapsulated.
    Local,
    /// Like `Local`, with tags that cover the whole packet.
    LocalWhole,
    /// Like `Local`, with IPv6 outer headers.
    LocalV6,
    /// The paper's form for IPv4 traffic through the ingress edge; IPv6 is encapsulated.
    Transparent,
    /// Like `Transparent`, for traffic that the ingress edge itself sends.
    LocalTransparent,
}

const fn scenario(name: &'static str, fault: Fault, form: Form) -> Scenario {
    Scenario { name, fault, form }
}

/// All scenarios of the matrix.
pub(in crate::experiments) const SCENARIOS: &[Scenario] = &[
    scenario("clean", Fault::None, Form::Transit),
    scenario("cut", Fault::Cut, Form::Transit),
    scenario("flapping", Fault::Flapping, Form::Transit),
    scenario("lossy-20", Fault::Lossy { percent: 20 }, Form::Transit),
    scenario("lossy-80", Fault::Lossy { percent: 80 }, Form::Transit),
    scenario(
        "reordering-20",
        Fault::Reordering { percent: 20 },
        Form::Transit,
    ),
    scenario("skew-1ms", Fault::Ahead { ms: 1 }, Form::Transit),
    scenario("skew-10ms", Fault::Ahead { ms: 10 }, Form::Transit),
    scenario("skew-50ms", Fault::Ahead { ms: 50 }, Form::Transit),
    scenario("skew-450ms", Fault::Ahead { ms: 450 }, Form::Transit),
    scenario("late-450ms", Fault::Late { ms: 450 }, Form::Transit),
    scenario(
        "corrupting-20",
        Fault::Corrupting { percent: 20 },
        Form::TransitWhole,
    ),
    scenario(
        "ipv6-lossy-20",
        Fault::Lossy { percent: 20 },
        Form::TransitV6,
    ),
    scenario("local-clean", Fault::None, Form::Local),
    scenario("local-cut", Fault::Cut, Form::Local),
    scenario("local-lossy-20", Fault::Lossy { percent: 20 }, Form::Local),
    scenario(
        "local-corrupting-20",
        Fault::Corrupting { percent: 20 },
        Form::LocalWhole,
    ),
    scenario(
        "local-ipv6-lossy-20",
        Fault::Lossy { percent: 20 },
        Form::LocalV6,
    ),
    scenario("transparent-clean", Fault::None, Form::Transparent),
    scenario(
        "transparent-lossy-20",
        Fault::Lossy { percent: 20 },
        Form::Transparent,
    ),
    scenario(
        "local-transparent-lossy-20",
        Fault::Lossy { percent: 20 },
        Form::LocalTransparent,
    ),
];

impl Scenario {
    pub(super) fn replication(&self) -> Replication {
        let v6 = matches!(self.form, Form::TransitV6 | Form::LocalV6);
        Replication {
            outer: if v6 { Outer::V6 } else { Outer::V4 },
            authenticate: Some(self.cover()),
            transparent: self.is_transparent(),
            sender: if self.is_local() {
                Sender::Ingress
            } else {
                Sender::Source
            },
            both_ways: true,
            ..Replication::on(PathSet::from_bits(0b11))
        }
    }

    fn cover(&self) -> Cover {
        match self.form {
            Form::TransitWhole | Form::LocalWhole => Cover::Whole,
            _ => Cover::Headers,
        }
    }

    /// Returns whether the ingress edge itself sends.
    pub(super) fn is_local(&self) -> bool {
        matches!(
            self.form,
            Form::Local | Form::LocalWhole | Form::LocalV6 | Form::LocalTransparent
        )
    }

    /// Returns whether IPv4 packets are sent unchanged.
    pub(super) fn is_transparent(&self) -> bool {
        matches!(self.form, Form::Transparent | Form::LocalTransparent)
    }

    /// Enables segmentation offload for a local sender, as on a real device.
    pub(super) fn prepare(&self, lab: &Lab) -> Result<()> {
        if self.is_local() {
            let device = &lab.addressing().paths[0].near.device;
            lab.ingress()
                .offloads(device, &[("sg", true), ("gso", true)])?;
        }
        Ok(())
    }

    pub(in crate::experiments) fn paths(&self, lab: &Lab) -> Result<Vec<EmulatedPath>> {
        let links = [self.fault.faulty_link()?, self.fault.other_link()];
        let paths = lab.paths().zip(links).map(|(id, link)| EmulatedPath {
            name: id.to_string(),
            ingress_device: network_ingress(id),
            egress_device: network_egress(id),
            forward: link.clone(),
            backward: link,
        });
        Ok(paths.collect())
    }
}

/// Longer than any run.
const ALWAYS: Duration = Duration::from_secs(86_400);

impl Fault {
    fn faulty_link(self) -> Result<LinkConfig> {
        let mut link = LinkConfig {
            delay: Delay::Constant(FAST),
            ..LinkConfig::default()
        };
        match self {
            Fault::None => {}
            Fault::Cut => link.cuts = vec![Span::new(Duration::ZERO, ALWAYS)?],
            Fault::Flapping => link.cuts = flaps()?,
            Fault::Lossy { percent } => link.loss = lossy(percent)?,
            Fault::Corrupting { percent } => link.corrupt = share(percent)?,
            Fault::Reordering { percent } => {
                link.reorder = Some(Reorder {
                    share: share(percent)?,
                    delay: REORDER_DELAY,
                });
                link.order = Order::Free;
            }
            Fault::Ahead { .. } => link.loss = lossy(20)?,
            Fault::Late { ms } => {
                link.delay = Delay::Constant(FAST + SLOWER_BY + Duration::from_millis(ms));
            }
        }
        Ok(link)
    }

    fn other_link(self) -> LinkConfig {
        let slower_by = match self {
            Fault::Ahead { ms } => Duration::from_millis(ms),
            _ => SLOWER_BY,
        };
        LinkConfig {
            delay: Delay::Constant(FAST + slower_by),
            ..LinkConfig::default()
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::None => write!(f, "none, 4 ms faster"),
            Fault::Cut => write!(f, "cut from the first packet to the last"),
            Fault::Flapping => write!(f, "cut for the first half of every second"),
            Fault::Lossy { percent } => write!(f, "{percent} % loss, 4 ms faster"),
            Fault::Corrupting { percent } => write!(f, "{percent} % corrupted, 4 ms faster"),
            Fault::Reordering { percent } => {
                write!(f, "{percent} % held back by 10 ms, 4 ms faster")
            }
            Fault::Ahead { ms } => write!(f, "{ms} ms faster, 20 % loss"),
            Fault::Late { ms } => write!(f, "{ms} ms slower"),
        }
    }
}

/// Returns cuts for the first half of every second.
fn flaps() -> Result<Vec<Span>> {
    const FLAP: Duration = Duration::from_millis(500);
    let cut = |flap: u32| Ok(Span::new(FLAP * 2 * flap, FLAP * (2 * flap + 1))?);
    let flaps = (ALWAYS.as_secs() / 24) as u32;
    (0..flaps).map(cut).collect()
}

fn lossy(percent: u8) -> Result<Option<Loss>> {
    Ok(Some(Loss::Independent(share(percent)?)))
}

fn share(percent: u8) -> Result<Probability> {
    Ok(Probability::try_from(f64::from(percent) / 100.0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_links_are_valid() {
        for (index, scenario) in SCENARIOS.iter().enumerate() {
            assert!(
                SCENARIOS[..index]
                    .iter()
                    .all(|other| other.name != scenario.name),
                "{}",
                scenario.name
            );
            assert!(scenario.fault.faulty_link().is_ok(), "{}", scenario.name);
        }
    }
}

use crate::edges::{Outer, Replication, Sender};
use crate::emulator::EmulatedPath;
use crate::topology::{Lab, network_egress, network_ingress};
use anyhow::Result;
use hawser_netem::{Delay, LinkConfig, Loss, Order, Probability, Reorder, Span};
use hawser_units::PathSet;
use hawser_wire::Cover;
use std::fmt;
use std::time::Duration;

/// The delay of the faster path.
const FAST: Duration = Duration::from_millis(1);

/// How much longer the other takes, unless the skew is what is tried.
const BEHIND: Duration = Duration::from_millis(4);

/// What packets that are held back wait: long enough for the copy on the other path to overtake them.
const HELD_BACK: Duration = Duration::from_millis(10);

/// A fault in a form of replication.
pub(in crate::experiments) struct Scenario {
    pub(in crate::experiments) name: &'static str,
    pub(in crate::experiments) fault: Fault,
    form: Form,
}

/// What is wrong with path 1, the default route, in both directions. The other path loses nothing.
#[derive(Clone, Copy)]
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
    /// It is faster by this time and loses packets, so that each of these comes late, among newer ones.
    Ahead {
        ms: u64,
    },
    /// It is slower by this time.
    Late {
        ms: u64,
    },
    /// It changes a byte of the payload of packets.
    Corrupting {
        percent: u8,
    },
}

/// How traffic is replicated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// What passes through the ingress edge, encapsulated.
    Transit,
    /// The same with tags that cover the whole packet.
    TransitWhole,
    /// The same in IPv6 headers.
    TransitV6,
    /// What the ingress edge itself sends.
    Local,
    /// The same with tags that cover the whole packet.
    LocalWhole,
    /// The same in IPv6 headers.
    LocalV6,
    /// The paper's form, for the IPv4 that passes through, beside encapsulated IPv6.
    Transparent,
    /// The same for what the ingress edge itself sends.
    LocalTransparent,
}

const fn scenario(name: &'static str, fault: Fault, form: Form) -> Scenario {
    Scenario { name, fault, form }
}

/// The matrix.
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

    /// Whether the ingress edge itself sends.
    pub(super) fn is_local(&self) -> bool {
        matches!(
            self.form,
            Form::Local | Form::LocalWhole | Form::LocalV6 | Form::LocalTransparent
        )
    }

    /// Whether nothing is added to IPv4 packets.
    pub(super) fn is_transparent(&self) -> bool {
        matches!(self.form, Form::Transparent | Form::LocalTransparent)
    }

    /// A local sender hands trains of segments to its device, as it does on a real one.
    pub(super) fn prepare(&self, lab: &Lab) -> Result<()> {
        if self.is_local() {
            let device = &lab.addressing().paths[0].near.device;
            lab.ingress()
                .offloads(device, &[("sg", true), ("gso", true)])?;
        }
        Ok(())
    }

    pub(in crate::experiments) fn paths(&self, lab: &Lab) -> Result<Vec<EmulatedPath>> {
        let links = [self.fault.bad()?, self.fault.good()];
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

impl Fault {
    fn bad(self) -> Result<LinkConfig> {
        const ALWAYS: Duration = Duration::from_secs(86_400);
        const FLAP: Duration = Duration::from_millis(500);
        let lossy = |percent| -> Result<_> { Ok(Some(Loss::Independent(share(percent)?))) };
        let link = LinkConfig {
            delay: Delay::Constant(FAST),
            ..LinkConfig::default()
        };
        Ok(match self {
            Fault::None => link,
            Fault::Cut => LinkConfig {
                cuts: vec![Span::new(Duration::ZERO, ALWAYS)?],
                ..link
            },
            Fault::Flapping => {
                let cut = |flap: u32| Span::new(FLAP * 2 * flap, FLAP * (2 * flap + 1));
                let flaps = (ALWAYS.as_secs() / 24) as u32;
                LinkConfig {
                    cuts: (0..flaps).map(cut).collect::<Result<_, _>>()?,
                    ..link
                }
            }
            Fault::Lossy { percent } => LinkConfig {
                loss: lossy(percent)?,
                ..link
            },
            Fault::Corrupting { percent } => LinkConfig {
                corrupt: share(percent)?,
                ..link
            },
            Fault::Reordering { percent } => {
                let reorder = Some(Reorder {
                    share: share(percent)?,
                    delay: HELD_BACK,
                });
                LinkConfig {
                    reorder,
                    order: Order::Free,
                    ..link
                }
            }
            Fault::Ahead { .. } => LinkConfig {
                loss: lossy(20)?,
                ..link
            },
            Fault::Late { ms } => LinkConfig {
                delay: Delay::Constant(FAST + BEHIND + Duration::from_millis(ms)),
                ..link
            },
        })
    }

    fn good(self) -> LinkConfig {
        let behind = match self {
            Fault::Ahead { ms } => Duration::from_millis(ms),
            _ => BEHIND,
        };
        LinkConfig {
            delay: Delay::Constant(FAST + behind),
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
            assert!(scenario.fault.bad().is_ok(), "{}", scenario.name);
        }
    }
}

//! The rule that decides how the programs of an agent use an interface.
//!
//! Native XDP is faster, but not every driver has all of it. The other way works everywhere: generic
//! XDP for copies that arrive, and TC for packets to replicate and for copies to send. XDP needs an
//! Ethernet header: where packets have none, the copies that arrive are handled at TC too.

use crate::interface::LinkHeader;
use crate::netlink::XdpFeatures;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The mode that a configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wanted {
    /// The best mode that works for each interface.
    #[default]
    Best,
    /// Native, or an error.
    Native,
    /// Generic.
    Generic,
}

/// The mode in which a program or copies use an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// XDP in the driver.
    Native,
    /// Generic XDP to deduplicate; TC to replicate and to send copies.
    Generic,
    /// TC to deduplicate, on interfaces whose packets have no Ethernet header or that refuse XDP.
    Tc,
}

/// A mode with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The mode.
    pub mode: Mode,
    /// The reason, about the interface as "it".
    pub reason: Cow<'static, str>,
    /// The consequence that an operator has to know, and what to do.
    pub warning: Option<&'static str>,
}

/// The properties of an interface that decide its mode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// The abilities of its driver.
    pub features: XdpFeatures,
    /// Whether it is one end of a veth pair.
    pub is_veth: bool,
    /// Whether there are VLAN devices on it, whose tags it takes out of the frames before XDP sees
    /// them.
    pub strips_vlan_tags: bool,
    /// The header of its packets before the IP header.
    pub header: LinkHeader,
    /// The modes in which it refused a program, with the reason.
    pub refused: Refused,
}

/// The modes that did not work, with the reasons. A reason calls the interface "it".
pub type Refused = BTreeMap<Mode, String>;

impl Wanted {
    /// Returns the mode for a value of `generic_xdp`.
    pub fn of(generic_xdp: Option<bool>) -> Self {
        match generic_xdp {
            None => Wanted::Best,
            Some(false) => Wanted::Native,
            Some(true) => Wanted::Generic,
        }
    }
}

impl Mode {
    /// Returns the name in configurations and states.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Tc => "tc",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const FORCED_NATIVE: &str = "the configuration says `generic_xdp = false`";
const FORCED_GENERIC: &str = "the configuration says `generic_xdp = true`";
const NO_NATIVE: &str = "its driver has no native XDP";
const NO_HEADER: &str = "its packets have no Ethernet header";
const NO_HEADER_FOR_NATIVE: &str =
    "its packets have no Ethernet header, which native XDP needs: remove `generic_xdp`";
const OTHER_HEADER: &str =
    "its packets have neither an Ethernet header nor only an IP header: use another interface";

impl Device {
    /// Returns the mode for deduplicating the copies that arrive.
    ///
    /// # Errors
    /// If they cannot be deduplicated in the wanted mode.
    pub fn deduplicating(&self, wanted: Wanted) -> Result<Choice, &'static str> {
        match (self.header, wanted) {
            (LinkHeader::Ethernet, _) => Ok(self.deduplicating_frames(wanted)),
            (LinkHeader::None, Wanted::Native) => Err(NO_HEADER_FOR_NATIVE),
            (LinkHeader::None, _) => Ok(Choice {
                mode: Mode::Tc,
                ..generic(NO_HEADER)
            }),
            (LinkHeader::Other, _) => Err(OTHER_HEADER),
        }
    }

    fn deduplicating_frames(&self, wanted: Wanted) -> Choice {
        match wanted {
            Wanted::Native => native(FORCED_NATIVE),
            Wanted::Generic => Choice {
                warning: self.is_veth.then_some(
                    "generic XDP does not see the copies that a node at the other end of a veth pair makes at TC, so they may not \
                     arrive: remove `generic_xdp`, or set it to `false`",
                ),
                ..generic(FORCED_GENERIC)
            },
            Wanted::Best if self.is_native() => native("its driver has native XDP"),
            Wanted::Best => self.deduplicating_otherwise(),
        }
    }

    /// Returns the mode for deduplicating where native XDP does not work: the first one of the others
    /// that was not refused. On a veth interface, generic XDP is the last one, because it does not see
    /// the copies that a node at the other end makes at TC.
    fn deduplicating_otherwise(&self) -> Choice {
        let order = match self.is_veth && self.refused.contains_key(&Mode::Native) {
            true => [Mode::Tc, Mode::Generic],
            false => [Mode::Generic, Mode::Tc],
        };
        let is_refused = |mode: &Mode| self.refused.contains_key(mode);
        let mode = order.into_iter().find(|mode| !is_refused(mode));
        let mode = mode.unwrap_or(Mode::Generic);
        let reason = match mode {
            Mode::Tc => self.refused.get(&Mode::Generic),
            _ => None,
        };
        Choice {
            mode,
            ..generic(reason.map_or_else(|| self.no_native(), |why| why.clone().into()))
        }
    }

    /// Returns whether native XDP works, as far as is known.
    fn is_native(&self) -> bool {
        self.features.native && !self.refused.contains_key(&Mode::Native)
    }

    fn no_native(&self) -> Cow<'static, str> {
        let refused = self.refused.get(&Mode::Native);
        refused.map_or(NO_NATIVE.into(), |why| why.clone().into())
    }

    /// Returns the mode for replicating packets that arrive and pass through the node.
    pub fn replicating(&self, wanted: Wanted) -> Choice {
        const TAGS: &str =
            "its driver takes out VLAN tags, so XDP cannot tell the frames of VLANs from others";
        let redirect = self.features.redirect;
        match wanted {
            Wanted::Native => Choice {
                warning: self.strips_vlan_tags.then_some(
                    "packets of VLANs on this interface are replicated where a flow selects them, because the driver takes out \
                     their tags: run `ethtool -K INTERFACE rxvlan off`, or remove `generic_xdp`",
                ),
                ..native(FORCED_NATIVE)
            },
            Wanted::Generic => generic(FORCED_GENERIC),
            Wanted::Best if !self.is_native() => generic(self.no_native()),
            Wanted::Best if !redirect => generic("its driver cannot redirect frames from XDP"),
            Wanted::Best if self.strips_vlan_tags => generic(TAGS),
            Wanted::Best => native("its driver has native XDP"),
        }
    }

    /// Returns the mode for copies that leave. In native mode, the interface accepts frames that
    /// XDP redirects to it; in generic mode, copies are clones.
    ///
    /// # Errors
    /// If the wanted mode would lose the copies.
    pub fn sending(&self, wanted: Wanted) -> Result<Choice, &'static str> {
        match (self.header, wanted) {
            (LinkHeader::Ethernet, _) => self.sending_frames(wanted),
            (LinkHeader::None, Wanted::Native) => Err(NO_HEADER_FOR_NATIVE),
            (LinkHeader::None, _) => Ok(generic(NO_HEADER)),
            (LinkHeader::Other, _) => Err(OTHER_HEADER),
        }
    }

    fn sending_frames(&self, wanted: Wanted) -> Result<Choice, &'static str> {
        let takes_frames = self.features.is_target;
        match wanted {
            Wanted::Native if takes_frames => Ok(native(FORCED_NATIVE)),
            Wanted::Native if self.is_veth => Err(
                "it accepts no frames from XDP, because its other end does not poll: run `ethtool -K PEER gro on` for that end, \
                 or remove `generic_xdp`",
            ),
            Wanted::Native => Err(
                "its driver accepts no frames from XDP: remove `generic_xdp`, or use another interface",
            ),
            Wanted::Generic => Ok(generic(FORCED_GENERIC)),
            Wanted::Best if takes_frames => Ok(native("its driver accepts frames from XDP")),
            Wanted::Best if self.is_veth => Ok(generic(
                "it accepts no frames from XDP, because its other end does not poll",
            )),
            Wanted::Best => Ok(generic("its driver accepts no frames from XDP")),
        }
    }

    /// Returns whether the driver may accept frames from XDP once a program is attached. The drivers
    /// i40e, ice, ena and virtio_net do.
    pub fn may_take_frames_with_a_program(&self) -> bool {
        self.features.native && !self.features.is_target && !self.is_veth
    }
}

fn native(reason: impl Into<Cow<'static, str>>) -> Choice {
    Choice {
        mode: Mode::Native,
        reason: reason.into(),
        warning: None,
    }
}

fn generic(reason: impl Into<Cow<'static, str>>) -> Choice {
    Choice {
        mode: Mode::Generic,
        ..native(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(native: bool, redirect: bool, is_target: bool) -> Device {
        Device {
            features: XdpFeatures {
                native,
                redirect,
                is_target,
            },
            ..Device::default()
        }
    }

    /// Returns the modes to deduplicate, to replicate and to send.
    fn modes(device: &Device, wanted: Wanted) -> (Mode, Mode, Option<Mode>) {
        (
            device.deduplicating(wanted).unwrap().mode,
            device.replicating(wanted).mode,
            device.sending(wanted).ok().map(|choice| choice.mode),
        )
    }

    use Mode::{Generic, Native};

    #[test]
    fn the_best_mode_follows_from_the_features() {
        let cases = [
            ("mlx5", device(true, true, true), [Native, Native, Native]),
            ("i40e", device(true, true, false), [Native, Native, Generic]),
            (
                "no redirect",
                device(true, false, false),
                [Native, Generic, Generic],
            ),
            (
                "Wi-Fi, bond, USB",
                device(false, false, false),
                [Generic; 3],
            ),
        ];
        for (name, device, [receive, transit, send]) in cases {
            let expected = (receive, transit, Some(send));
            assert_eq!(modes(&device, Wanted::Best), expected, "{name}");
        }
    }

    #[test]
    fn a_forced_mode_is_obeyed_or_refused() {
        let (able, unable) = (device(true, true, true), device(false, false, false));
        assert_eq!(modes(&able, Wanted::Native), (Native, Native, Some(Native)));
        assert_eq!(modes(&unable, Wanted::Native), (Native, Native, None));
        for device in [able, unable] {
            assert_eq!(
                modes(&device, Wanted::Generic),
                (Generic, Generic, Some(Generic))
            );
        }
    }

    #[test]
    fn stripped_tags_are_seen_at_tc_alone() {
        let mut device = device(true, true, true);
        device.strips_vlan_tags = true;
        assert_eq!(
            modes(&device, Wanted::Best),
            (Native, Generic, Some(Native))
        );
        let forced = device.replicating(Wanted::Native);
        assert!(forced.warning.unwrap().contains("rxvlan off"));
    }

    #[test]
    fn generic_xdp_on_a_veth_comes_with_a_warning() {
        let mut device = device(true, true, true);
        let receiving = |device: &Device, wanted| device.deduplicating(wanted).unwrap();
        assert_eq!(receiving(&device, Wanted::Generic).warning, None);
        device.is_veth = true;
        let forced = receiving(&device, Wanted::Generic);
        assert!(forced.warning.unwrap().contains("remove `generic_xdp`"));
        assert_eq!(receiving(&device, Wanted::Best).mode, Native);
    }

    #[test]
    fn the_next_mode_is_used_where_one_is_refused() {
        let mut device = device(true, true, true);
        let receiving = |device: &Device| device.deduplicating(Wanted::Best).unwrap();
        for (mode, why, next) in [
            (Mode::Native, "its MTU is too large", Mode::Generic),
            (Mode::Generic, "not here", Mode::Tc),
            (Mode::Tc, "too old", Mode::Generic),
        ] {
            device.refused.insert(mode, why.to_owned());
            assert_eq!(receiving(&device).mode, next, "{why}");
        }
        let replicating = device.replicating(Wanted::Best);
        assert_eq!(replicating.mode, Generic);
        assert_eq!(replicating.reason, "its MTU is too large");
        assert_eq!(device.replicating(Wanted::Native).mode, Native);
        assert_eq!(device.deduplicating(Wanted::Native).unwrap().mode, Native);
    }

    #[test]
    fn a_veth_that_refuses_native_xdp_is_handled_at_tc() {
        let mut device = device(true, true, true);
        device.is_veth = true;
        let why = "it has not enough queues".to_owned();
        device.refused.insert(Mode::Native, why.clone());
        let receiving = device.deduplicating(Wanted::Best).unwrap();
        assert_eq!((receiving.mode, &*receiving.reason), (Mode::Tc, &*why));
    }

    #[test]
    fn packets_without_an_ethernet_header_are_handled_at_tc() {
        let modem = Device {
            header: LinkHeader::None,
            ..device(false, false, false)
        };
        for wanted in [Wanted::Best, Wanted::Generic] {
            let receiving = modem.deduplicating(wanted).unwrap();
            assert_eq!((receiving.mode, &*receiving.reason), (Mode::Tc, NO_HEADER));
            assert_eq!(modem.sending(wanted), Ok(generic(NO_HEADER)));
        }
        for refused in [
            modem.deduplicating(Wanted::Native),
            modem.sending(Wanted::Native),
        ] {
            assert!(refused.unwrap_err().contains("remove `generic_xdp`"));
        }
    }

    #[test]
    fn packets_with_another_header_are_refused() {
        let infiniband = Device {
            header: LinkHeader::Other,
            ..device(true, true, true)
        };
        for refused in [
            infiniband.deduplicating(Wanted::Best),
            infiniband.sending(Wanted::Best),
        ] {
            assert_eq!(refused, Err(OTHER_HEADER));
        }
    }

    #[test]
    fn a_veth_without_a_polling_peer_says_so() {
        let mut device = device(true, true, false);
        assert!(device.may_take_frames_with_a_program());
        device.is_veth = true;
        assert!(!device.may_take_frames_with_a_program());
        assert!(
            device
                .sending(Wanted::Best)
                .unwrap()
                .reason
                .contains("poll")
        );
        assert!(
            device
                .sending(Wanted::Native)
                .unwrap_err()
                .contains("gro on")
        );
    }
}

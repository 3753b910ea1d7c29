//! The properties of interfaces that decide the mode in which they are used, and the program that
//! makes some drivers accept copies.

use super::environment::Interfaces;
use hawser_io::netlink::XdpFeatures;
use hawser_io::xdp::{Choice, Device, Mode, Refused, Wanted};
use hawser_replication_bpf::{AttachError, Link, Passing, XdpMode, xdp_mode};
use std::collections::BTreeMap;
use tracing::{debug, info, warn};

/// A use of an interface, which has a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// Copies that arrive are deduplicated.
    Deduplicate,
    /// Packets that arrive are replicated.
    Replicate,
    /// Copies leave.
    Send,
}

/// The modes of the interfaces, by name and use.
pub(crate) type Modes = BTreeMap<(String, Use), Choice>;

#[derive(Default)]
pub(super) struct Devices {
    modes: Modes,
    passing: Option<Passing>,
    /// Whether interfaces have native XDP, by number, where the kernel does not tell.
    trials: BTreeMap<u32, bool>,
    /// The modes that interfaces have refused, by number.
    refused: BTreeMap<u32, Refused>,
    /// The programs that make drivers accept frames, by number of the interface; `None` where one
    /// made no difference.
    passes: BTreeMap<u32, Option<Link>>,
}

impl Use {
    /// Returns the name in the status.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Use::Deduplicate => "deduplicate",
            Use::Replicate => "replicate",
            Use::Send => "send",
        }
    }
}

impl Devices {
    pub(super) fn modes(&self) -> &Modes {
        &self.modes
    }

    /// Returns the properties of an interface; `None` if it does not exist.
    pub(super) fn examine(&mut self, interfaces: &Interfaces, name: &str) -> Option<Device> {
        let (number, found) = interfaces.device(name)?;
        let features = found.features.unwrap_or_else(|| {
            // Before Linux 6.3, every driver with native XDP counts as accepting frames: the kernel
            // does not tell, and has no other way to send copies.
            let native = self.try_native(number);
            XdpFeatures {
                native,
                redirect: native,
                is_target: native,
            }
        });
        Some(Device {
            features,
            is_veth: found.is_veth,
            strips_vlan_tags: found.strips_vlan_tags,
            header: found.header,
            refused: self.refused.get(&number).cloned().unwrap_or_default(),
        })
    }

    /// Records that an interface was to be used in a mode and a program could not be attached.
    ///
    /// # Errors
    /// If another mode would not help, was refused before, or the configuration demands this one.
    pub(super) fn refuse(
        &mut self,
        (name, number): (&str, u32),
        mode: Mode,
        wanted: Wanted,
        error: AttachError,
    ) -> Result<(), AttachError> {
        let refused = self.refused.entry(number).or_default();
        match error.refusal() {
            Some(why) if wanted == Wanted::Best && !refused.contains_key(&mode) => {
                warn!(interface = name, "{mode} mode does not work: {why}");
                refused.insert(mode, why);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Returns whether a driver has native XDP, by attaching a program for a moment.
    fn try_native(&mut self, number: u32) -> bool {
        if let Some(native) = self.trials.get(&number) {
            return *native;
        }
        let native = match self.attach_pass(number) {
            Ok(link) => link.detach().is_ok(),
            // A program of an earlier agent is attached.
            Err(AttachError::Occupied { .. }) => {
                matches!(xdp_mode(number), Ok(Some(XdpMode::Native)))
            }
            Err(_) => false,
        };
        self.trials.insert(number, native);
        native
    }

    /// Attaches a program that passes every frame to an interface whose driver may then accept
    /// frames from XDP, unless this was tried before. Returns whether a program was attached.
    pub(super) fn attract_frames(&mut self, name: &str, number: u32, device: &Device) -> bool {
        let is_unknown = self.trials.contains_key(&number) && device.features.native;
        let may_help = device.may_take_frames_with_a_program() || is_unknown && !device.is_veth;
        if !may_help || self.passes.contains_key(&number) {
            return false;
        }
        let link = self.attach_pass(number);
        let link = link
            .inspect_err(|error| debug!(interface = name, "cannot attach a program: {error}"))
            .ok();
        let is_attached = link.is_some();
        self.passes.insert(number, link);
        is_attached
    }

    /// Keeps the program of an interface if the driver accepts frames with it, and removes it
    /// otherwise.
    pub(super) fn judge_pass(&mut self, name: &str, number: u32, takes_frames: bool) {
        let Some(pass) = self.passes.get_mut(&number) else {
            return;
        };
        if takes_frames {
            info!(
                interface = name,
                "attached a program that passes all frames: with it, the driver accepts copies"
            );
        } else if let Some(link) = pass.take() {
            detach(&link, name);
        }
    }

    /// Removes the program that passes frames, because another one takes its place.
    pub(super) fn make_way(&mut self, name: &str, number: u32) {
        if let Some(Some(link)) = self.passes.remove(&number) {
            detach(&link, name);
        }
    }

    /// Forgets interfaces that no longer exist.
    pub(super) fn forget_others(&mut self, interfaces: &Interfaces) {
        let exists = |number: &u32| interfaces.name(*number).is_some();
        self.trials.retain(|number, _| exists(number));
        self.passes.retain(|number, _| exists(number));
        self.refused.retain(|number, _| exists(number));
        let modes = &mut self.modes;
        modes.retain(|(name, _), _| interfaces.number(name).is_some());
    }

    /// Records and logs the mode of an interface.
    pub(super) fn record(&mut self, name: &str, usage: Use, choice: Choice) {
        let key = (name.to_owned(), usage);
        if self.modes.get(&key) == Some(&choice) {
            return;
        }
        let Choice {
            mode,
            reason,
            warning,
        } = &choice;
        let doing = match (usage, *mode) {
            (Use::Deduplicate, Mode::Native) => "copies are deduplicated in native XDP",
            (Use::Deduplicate, Mode::Generic) => "copies are deduplicated in generic XDP",
            (Use::Deduplicate, Mode::Tc) => "copies are deduplicated at TC",
            (Use::Replicate, Mode::Native) => "packets are replicated in native XDP",
            (Use::Replicate, Mode::Generic | Mode::Tc) => "packets are replicated at TC",
            (Use::Send, Mode::Native) => "copies leave as frames of XDP",
            (Use::Send, Mode::Generic | Mode::Tc) => "copies leave as clones, made at TC",
        };
        info!(interface = name, %mode, "{doing}: {reason}");
        if let Some(warning) = warning {
            warn!(interface = name, "{warning}");
        }
        self.modes.insert(key, choice);
    }

    /// Forgets the mode of a use that has ended.
    pub(super) fn forget(&mut self, name: &str, usage: Use) {
        self.modes.remove(&(name.to_owned(), usage));
    }

    fn attach_pass(&mut self, number: u32) -> Result<Link, AttachError> {
        let passing = match &mut self.passing {
            Some(passing) => passing,
            none => none.insert(Passing::load().map_err(|error| AttachError::Other {
                ifindex: number,
                source: std::io::Error::other(error),
            })?),
        };
        passing.attach(number)
    }
}

fn detach(link: &Link, name: &str) {
    // The interface may be gone, and the program with it.
    link.detach()
        .unwrap_or_else(|error| debug!(interface = name, "cannot detach the program: {error}"));
}

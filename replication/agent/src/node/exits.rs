//! The modes in which traffic to replicate arrives and its copies leave, as interfaces come, go and
//! change.

use super::devices::Use;
use super::environment::Interfaces;
use super::paths::Exits;
use super::{Hook, NO_INTERFACE, Node};
use anyhow::{Context, Result};
use hawser_io::interface::{self, Interface};
use hawser_io::segmenter::{Segmenter, Traffic};
use hawser_io::xdp::{Mode, Wanted};
use hawser_replication_bpf::{Loop, Sender};
use std::collections::BTreeSet;
use tracing::info;

impl Node {
    /// Attaches the programs that replicate to an interface.
    pub(super) fn attach_replication(&mut self, hook: Hook, interface: &Interface) -> Result<()> {
        let name = &interface.name;
        let sender = self
            .sender
            .as_mut()
            .context("programs are attached after they are loaded")?;
        if hook == Hook::ReplicateLocal {
            let segmenter = attach_local(sender, interface)?;
            self.segmenters.insert((hook, name.clone()), segmenter);
            info!(interface = name, "replicating local traffic");
            return Ok(());
        }
        let place = (name.as_str(), interface.index);
        self.devices.make_way(name, interface.index);
        let choice = loop {
            let device = self.devices.examine(&self.interfaces, name);
            let choice = device.context("it is gone")?.replicating(self.config.xdp);
            if choice.mode != Mode::Native {
                let segmenter = attach_transit_loop(sender, interface)?;
                self.segmenters.insert((hook, name.clone()), segmenter);
                break choice;
            }
            match sender.attach_transit(interface.index) {
                Ok(()) => break choice,
                Err(error) => (self.devices).refuse(place, choice.mode, self.config.xdp, error)?,
            }
        };
        info!(interface = name, "replicating transit traffic");
        self.devices.record(name, Use::Replicate, choice);
        Ok(())
    }

    /// Detaches the programs that replicate from interfaces that are gone, have been replaced, or
    /// need another mode, so that they are attached again.
    pub(super) fn detach_changed(&mut self) -> Result<()> {
        let Node {
            sender: Some(sender),
            attached,
            devices,
            interfaces,
            config,
            segmenters,
            ..
        } = self
        else {
            return Ok(());
        };
        let mut is_other_mode = |name: &str| {
            let device = devices.examine(interfaces, name)?;
            let key = (name.to_owned(), Use::Replicate);
            let before = devices.modes().get(&key)?;
            Some(device.replicating(config.xdp).mode != before.mode)
        };
        let replicating = attached
            .iter()
            .filter(|((hook, _), attached)| {
                *hook != Hook::Deduplicate && attached.number != NO_INTERFACE
            })
            .filter(|((_, name), attached)| {
                interfaces.number(name) != Some(attached.number)
                    || !sender.is_attached(attached.number)
                    || is_other_mode(name).unwrap_or(false)
            });
        let changed: BTreeSet<(String, u32)> = replicating
            .map(|((_, name), attached)| (name.clone(), attached.number))
            .collect();
        for (name, number) in changed {
            sender.detach(number)?;
            for hook in [Hook::ReplicateTransit, Hook::ReplicateLocal] {
                segmenters.remove(&(hook, name.clone()));
                if let Some(attached) = attached.get_mut(&(hook, name.clone())) {
                    attached.number = NO_INTERFACE;
                }
            }
        }
        Ok(())
    }

    /// Chooses the mode in which copies leave by each interface of a path, and prepares for it.
    pub(super) fn choose_exits(&mut self) -> Result<Exits> {
        if self.sender.is_none() {
            return Ok(Exits::new());
        }
        if self.config.xdp != Wanted::Generic {
            self.attract_frames()?;
        }
        let wanted = self.config.xdp;
        let names = self.config.paths.values().map(|path| &path.interface);
        let (mut choices, mut exits) = (Vec::new(), Exits::new());
        for name in names.collect::<BTreeSet<_>>() {
            let Some(device) = self.devices.examine(&self.interfaces, name) else {
                continue;
            };
            let choice = device.sending(wanted);
            let exit = choice.as_ref().map(|choice| choice.mode);
            exits.insert(name.clone(), exit.map_err(|why| (*why).to_owned()));
            choices.extend(choice.ok().map(|choice| (name.clone(), choice)));
        }
        let needs_clones = |exit: &Result<Mode, String>| *exit == Ok(Mode::Generic);
        if exits.values().any(needs_clones)
            && let Err(error) = self.prepare_clones()
        {
            let why = format!("its copies have to be clones, which cannot be made: {error:#}");
            let unusable = exits.values_mut().filter(|exit| needs_clones(exit));
            unusable.for_each(|exit| *exit = Err(why.clone()));
        }
        for (name, choice) in choices {
            match &exits[&name] {
                Ok(_) => self.devices.record(&name, Use::Send, choice),
                Err(_) => self.devices.forget(&name, Use::Send),
            }
        }
        Ok(exits)
    }

    /// Attaches a program that passes all frames to interfaces of paths whose drivers accept copies
    /// only with one. A program that deduplicates has the same effect.
    fn attract_frames(&mut self) -> Result<()> {
        let mut tried = Vec::new();
        for name in self.config.paths.values().map(|path| &path.interface) {
            let number = self.interfaces.number(name);
            let key = (Hook::Deduplicate, name.clone());
            let attached = self.attached.get(&key).map(|attached| attached.number);
            let Some(number) = number.filter(|number| attached != Some(*number)) else {
                continue;
            };
            if let Some(device) = self.devices.examine(&self.interfaces, name)
                && self.devices.attract_frames(name, number, &device)
            {
                tried.push((name.clone(), number));
            }
        }
        if tried.is_empty() {
            return Ok(());
        }
        self.interfaces = Interfaces::read(&self.config)?;
        for (name, number) in tried {
            let device = self.devices.examine(&self.interfaces, &name);
            let takes_frames = device.is_some_and(|device| device.features.is_target);
            self.devices.judge_pass(&name, number, takes_frames);
        }
        Ok(())
    }

    /// Makes the interfaces on which traffic arrives replicate at TC too, for flows whose copies
    /// are clones.
    fn prepare_clones(&mut self) -> Result<()> {
        for name in &self.config.transit {
            let key = (Hook::ReplicateTransit, name.clone());
            let attached = self.attached.get(&key).map(|attached| attached.number);
            let is_attached = attached.is_some_and(|number| number != NO_INTERFACE);
            if let Some(sender) = &mut self.sender
                && is_attached
                && !self.segmenters.contains_key(&key)
            {
                let segmenter = attach_transit_loop(sender, &interface::find(name)?)
                    .with_context(|| format!("interface {name}"))?;
                self.segmenters.insert(key, segmenter);
            }
        }
        Ok(())
    }
}

/// Attaches the programs that replicate local traffic. Returns the segmenter between them.
fn attach_local(sender: &mut Sender, interface: &Interface) -> Result<Segmenter> {
    let segmenter = Segmenter::create(interface, Traffic::Leaving)?;
    // When a process is killed, the kernel closes its links from the last to the first. No packet
    // may enter a loop whose exit is closed.
    sender.attach_loop(loop_of(&segmenter, interface))?;
    sender.attach_local(interface.index)?;
    Ok(segmenter)
}

/// Attaches the programs that replicate transit traffic at TC. Returns the segmenter between them.
fn attach_transit_loop(sender: &mut Sender, interface: &Interface) -> Result<Segmenter> {
    let segmenter = Segmenter::create(interface, Traffic::Arriving)?;
    sender.attach_transit_loop(loop_of(&segmenter, interface))?;
    Ok(segmenter)
}

fn loop_of(segmenter: &Segmenter, interface: &Interface) -> Loop {
    Loop {
        device: interface.index,
        entry: segmenter.entry(),
        exit: segmenter.exit(),
    }
}

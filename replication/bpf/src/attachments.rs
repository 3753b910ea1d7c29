use crate::hook::{ReceiveHook, attach, hook_of};
use crate::pins::{Pins, Staged};
use crate::{AttachError, Link};
use libbpf_rs::Object;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The attachments of the programs that deduplicate to interfaces, which may have outlived the process
/// that made them.
#[derive(Debug)]
pub(crate) struct Attachments {
    links: BTreeMap<u32, Link>,
    pins: Option<Pins>,
}

/// The programs that deduplicate.
#[derive(Clone, Copy)]
pub(crate) struct Programs<'p> {
    pub(crate) xdp: BorrowedFd<'p>,
    /// Those at TC. Present if they have been loaded.
    pub(crate) tc: Option<TcPrograms<'p>>,
}

/// The programs that deduplicate at TC.
#[derive(Clone, Copy)]
pub(crate) struct TcPrograms<'p> {
    pub(crate) with_ethernet: BorrowedFd<'p>,
    pub(crate) without_ethernet: BorrowedFd<'p>,
}

impl Programs<'_> {
    /// Returns the program for a hook.
    fn at(&self, hook: ReceiveHook) -> BorrowedFd<'_> {
        match hook {
            ReceiveHook::Xdp(_) => self.xdp,
            ReceiveHook::Tc { has_ethernet } => {
                let programs = self.tc.expect("is loaded before it is attached");
                match has_ethernet {
                    true => programs.with_ethernet,
                    false => programs.without_ethernet,
                }
            }
        }
    }
}

/// New attachments, which are detached when this value is dropped.
#[derive(Default)]
struct NewLinks(Vec<(u32, Link)>);

impl NewLinks {
    fn into_links(mut self) -> Vec<(u32, Link)> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for NewLinks {
    fn drop(&mut self) {
        for (ifindex, link) in &self.0 {
            // The interface may be gone, and the attachment with it.
            link.detach().unwrap_or_else(|error| {
                tracing::debug!(ifindex, "cannot detach the program: {error}")
            });
        }
    }
}

/// The changes that attaching has made so far, which are undone if it fails.
#[derive(Default)]
struct Changes {
    new_links: NewLinks,
    staged: Staged,
    /// Attachments whose hook differed from the wanted one.
    switched: Vec<Switched>,
    /// Updated attachments with their previous program, which the kernel gives only to processes
    /// with CAP_SYS_ADMIN.
    updated: Vec<(u32, Link, io::Result<OwnedFd>)>,
}

/// An attachment whose hook differs from the wanted one.
struct AtOtherHook {
    ifindex: u32,
    link: Link,
    hook: ReceiveHook,
    wanted: ReceiveHook,
}

/// An attachment whose hook differed from the wanted one.
struct Switched {
    ifindex: u32,
    program: OwnedFd,
    hook: ReceiveHook,
}

impl Attachments {
    pub(crate) fn new(pins: Option<Pins>) -> Self {
        Attachments {
            links: BTreeMap::new(),
            pins,
        }
    }

    /// Attaches a program to all of the interfaces, each at a hook, or to none of them and then
    /// leaves no new pins.
    /// A pinned attachment gets the program without missing a packet. Returns the interfaces whose
    /// attachment had to be made again at another hook, and how long each had no program.
    pub(crate) fn attach(
        &mut self,
        programs: Programs<'_>,
        tables: &Object,
        interfaces: &[(u32, ReceiveHook)],
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        if let Some(pins) = &self.pins {
            pins.remove_unfinished();
        }
        let mut changes = Changes::default();
        match self.change(programs, tables, interfaces, &mut changes) {
            Ok(gaps) => {
                let updated = changes
                    .updated
                    .into_iter()
                    .map(|(ifindex, link, _)| (ifindex, link));
                // An interface that is gone has taken its attachment with it.
                self.links
                    .retain(|_, link| link.interface().is_ok_and(|interface| interface.is_some()));
                self.links
                    .extend(updated.chain(changes.new_links.into_links()));
                Ok(gaps)
            }
            Err(error) => {
                self.undo(changes);
                Err(error)
            }
        }
    }

    /// Attaches to all of the interfaces, or fails on the way. Records in `changes` what it has
    /// changed.
    fn change(
        &self,
        programs: Programs<'_>,
        tables: &Object,
        interfaces: &[(u32, ReceiveHook)],
        changes: &mut Changes,
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        let (mut taken_over, mut at_other_hook) = (Vec::new(), Vec::new());
        for (ifindex, wanted) in interfaces.iter().copied() {
            let failed = |source| AttachError::Other { ifindex, source };
            let Some(link) = self.pins.as_ref().and_then(|pins| pins.open_link(ifindex)) else {
                let link = attach(programs.at(wanted), ifindex, wanted)?;
                changes.new_links.0.push((ifindex, link));
                continue;
            };
            match hook_of(&link, ifindex).map_err(failed)? {
                Some(hook) if !hook.is_at_place_of(wanted) => at_other_hook.push(AtOtherHook {
                    ifindex,
                    link,
                    hook,
                    wanted,
                }),
                _ => taken_over.push((ifindex, programs.at(wanted), link)),
            }
        }
        self.stage(tables, changes)?;
        let gaps = self.switch_all(programs, at_other_hook, changes)?;
        update_all(taken_over, changes)?;
        changes.staged.commit()?;
        Ok(gaps)
    }

    /// Pins the tables and the new attachments under temporary names.
    fn stage(&self, tables: &Object, changes: &mut Changes) -> Result<(), AttachError> {
        let Some(pins) = &self.pins else {
            return Ok(());
        };
        let Changes {
            new_links, staged, ..
        } = changes;
        pins.stage_tables(tables, staged)?;
        new_links
            .0
            .iter()
            .try_for_each(|(ifindex, link)| pins.stage_link(*ifindex, link, staged))
    }

    /// Attaches again at another hook, one interface after the other, so that copies on the other
    /// interfaces fill the gap. Returns how long each interface had no program.
    fn switch_all(
        &self,
        programs: Programs<'_>,
        links: Vec<AtOtherHook>,
        changes: &mut Changes,
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        let mut gaps = Vec::new();
        for link in links {
            let (ifindex, begin) = (link.ifindex, Instant::now());
            self.switch(programs, link, changes)?;
            gaps.push((ifindex, begin.elapsed()));
        }
        Ok(gaps)
    }

    /// Restores the previous state.
    fn undo(
        &self,
        Changes {
            new_links,
            staged,
            switched,
            updated,
        }: Changes,
    ) {
        // The old programs can only be attached again once the new attachments are gone.
        drop((new_links, staged));
        switched
            .iter()
            .for_each(|switched| self.restore_hook(switched));
        for (ifindex, link, before) in updated {
            // The interface may be gone, and the attachment with it.
            before
                .and_then(|before| link.update(before.as_fd()))
                .unwrap_or_else(|error| {
                    tracing::warn!(ifindex, "cannot restore the previous program: {error}")
                });
        }
    }

    /// Returns whether this program processes packets, rather than that of an earlier process.
    pub(crate) fn is_active(&self) -> bool {
        self.pins.is_none() || !self.links.is_empty()
    }

    /// Returns whether a program is attached to an interface: another process may have detached it.
    pub(crate) fn is_attached(&self, ifindex: u32) -> bool {
        self.links.get(&ifindex).is_some_and(Link::is_attached)
    }

    /// Detaches the programs that earlier processes left on other interfaces. Returns these
    /// interfaces.
    pub(crate) fn release_others(&self) -> io::Result<Vec<u32>> {
        self.pins
            .as_ref()
            .map_or(Ok(Vec::new()), |pins| pins.release_others(&self.links))
    }

    /// Detaches from all but these interfaces. Returns the others.
    pub(crate) fn keep_only(&mut self, interfaces: &BTreeSet<u32>) -> io::Result<Vec<u32>> {
        let links = std::mem::take(&mut self.links).into_iter();
        let (kept, gone): (Vec<_>, Vec<_>) =
            links.partition(|(number, _)| interfaces.contains(number));
        self.links = kept.into_iter().collect();
        let mut numbers: Vec<u32> = gone.iter().map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|(_, link)| link.end());
        numbers.extend(self.release_others()?);
        Ok(numbers)
    }

    /// Detaches all of them.
    pub(crate) fn detach(self) -> io::Result<()> {
        if let Some(pins) = self.pins {
            pins.remove()?;
        }
        self.links.into_values().for_each(Link::end);
        Ok(())
    }

    /// Attaches again at another hook: the kernel cannot change the hook of an attachment.
    fn switch(
        &self,
        programs: Programs<'_>,
        AtOtherHook {
            ifindex,
            link,
            hook,
            wanted,
        }: AtOtherHook,
        changes: &mut Changes,
    ) -> Result<(), AttachError> {
        let failed = |source| AttachError::Other { ifindex, source };
        let before = Switched {
            ifindex,
            program: link.program().map_err(failed)?,
            hook,
        };
        link.detach().map_err(failed)?;
        changes.switched.push(before);
        let link = attach(programs.at(wanted), ifindex, wanted)?;
        let Changes {
            new_links, staged, ..
        } = changes;
        let staging = self
            .pins
            .as_ref()
            .map_or(Ok(()), |pins| pins.stage_link(ifindex, &link, staged));
        new_links.0.push((ifindex, link));
        staging
    }

    fn restore_hook(
        &self,
        Switched {
            ifindex,
            program,
            hook,
        }: &Switched,
    ) {
        let again = attach(program.as_fd(), *ifindex, *hook).and_then(|link| {
            let mut staged = Staged::default();
            if let Some(pins) = &self.pins {
                pins.stage_link(*ifindex, &link, &mut staged)?;
            }
            staged.commit()
        });
        if let Err(error) = again {
            tracing::error!("cannot restore the previous deduplication program: {error}");
        }
    }
}

/// Gives attachments of earlier processes these programs.
fn update_all(
    links: Vec<(u32, BorrowedFd<'_>, Link)>,
    changes: &mut Changes,
) -> Result<(), AttachError> {
    for (ifindex, program, link) in links {
        let failed = |source| AttachError::Other { ifindex, source };
        let before = link.program();
        link.update(program).map_err(failed)?;
        changes.updated.push((ifindex, link, before));
    }
    Ok(())
}

use crate::link::xdp_mode;
use crate::pins::{Pins, Staged};
use crate::{AttachError, Link, XdpMode};
use libbpf_rs::Object;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The attachments of an XDP program to interfaces, which may have outlived the process that made
/// them.
#[derive(Debug)]
pub(crate) struct Attachments {
    links: BTreeMap<u32, Link>,
    pins: Option<Pins>,
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
                tracing::debug!(ifindex, "cannot detach the XDP program: {error}")
            });
        }
    }
}

/// The changes that attaching has made so far, which are undone if it fails.
#[derive(Default)]
struct Changes {
    new_links: NewLinks,
    staged: Staged,
    /// Attachments whose mode differed from the wanted one.
    switched: Vec<Switched>,
    /// Updated attachments with their previous program, which the kernel gives only to processes
    /// with CAP_SYS_ADMIN.
    updated: Vec<(u32, Link, io::Result<OwnedFd>)>,
}

/// An attachment whose mode differs from the wanted one.
struct InOtherMode {
    ifindex: u32,
    link: Link,
    mode: XdpMode,
    wanted: XdpMode,
}

/// An attachment whose mode differed from the wanted one.
struct Switched {
    ifindex: u32,
    program: OwnedFd,
    mode: XdpMode,
}

impl Attachments {
    pub(crate) fn new(pins: Option<Pins>) -> Self {
        Attachments {
            links: BTreeMap::new(),
            pins,
        }
    }

    /// Attaches a program to all of the interfaces, each in a mode, or to none of them and then
    /// leaves no new pins.
    /// A pinned attachment gets the program without missing a packet. Returns the interfaces whose
    /// attachment had to be made again in another mode, and how long each had no program.
    pub(crate) fn attach(
        &mut self,
        program: BorrowedFd<'_>,
        tables: &Object,
        interfaces: &[(u32, XdpMode)],
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        if let Some(pins) = &self.pins {
            pins.remove_unfinished();
        }
        let mut changes = Changes::default();
        match self.change(program, tables, interfaces, &mut changes) {
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
        program: BorrowedFd<'_>,
        tables: &Object,
        interfaces: &[(u32, XdpMode)],
        changes: &mut Changes,
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        let (mut taken_over, mut in_other_mode) = (Vec::new(), Vec::new());
        for (ifindex, wanted) in interfaces.iter().copied() {
            let failed = |source| AttachError::Other { ifindex, source };
            let Some(link) = self.pins.as_ref().and_then(|pins| pins.open_link(ifindex)) else {
                let link = Link::xdp(program, ifindex, wanted)?;
                changes.new_links.0.push((ifindex, link));
                continue;
            };
            match xdp_mode(ifindex).map_err(failed)? {
                Some(mode) if mode != wanted => in_other_mode.push(InOtherMode {
                    ifindex,
                    link,
                    mode,
                    wanted,
                }),
                _ => taken_over.push((ifindex, link)),
            }
        }
        self.stage(tables, changes)?;
        let gaps = self.switch_all(program, in_other_mode, changes)?;
        update_all(program, taken_over, changes)?;
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

    /// Attaches again in another mode, one interface after the other, so that copies on the other
    /// interfaces fill the gap. Returns how long each interface had no program.
    fn switch_all(
        &self,
        program: BorrowedFd<'_>,
        links: Vec<InOtherMode>,
        changes: &mut Changes,
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        let mut gaps = Vec::new();
        for link in links {
            let (ifindex, begin) = (link.ifindex, Instant::now());
            self.switch(program, link, changes)?;
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
            .for_each(|switched| self.restore_mode(switched));
        for (ifindex, link, before) in updated {
            // The interface may be gone, and the attachment with it.
            before
                .and_then(|before| link.update(before.as_fd()))
                .unwrap_or_else(|error| {
                    tracing::warn!(ifindex, "cannot restore the previous XDP program: {error}")
                });
        }
    }

    /// Returns whether this program processes packets, rather than that of an earlier process.
    pub(crate) fn is_active(&self) -> bool {
        self.pins.is_none() || !self.links.is_empty()
    }

    /// Detaches the programs that earlier processes left on other interfaces. Returns these
    /// interfaces.
    pub(crate) fn release_others(&self) -> io::Result<Vec<u32>> {
        self.pins
            .as_ref()
            .map_or(Ok(Vec::new()), |pins| pins.release_others(&self.links))
    }

    /// Detaches all of them.
    pub(crate) fn detach(self) -> io::Result<()> {
        if let Some(pins) = self.pins {
            pins.remove()?;
        }
        self.links.into_values().for_each(Link::end);
        Ok(())
    }

    /// Attaches again in another mode: the kernel cannot change the mode of an attachment.
    fn switch(
        &self,
        program: BorrowedFd<'_>,
        InOtherMode {
            ifindex,
            link,
            mode,
            wanted,
        }: InOtherMode,
        changes: &mut Changes,
    ) -> Result<(), AttachError> {
        let failed = |source| AttachError::Other { ifindex, source };
        let before = Switched {
            ifindex,
            program: link.program().map_err(failed)?,
            mode,
        };
        link.detach().map_err(failed)?;
        changes.switched.push(before);
        let link = Link::xdp(program, ifindex, wanted)?;
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

    fn restore_mode(
        &self,
        Switched {
            ifindex,
            program,
            mode,
        }: &Switched,
    ) {
        let again = Link::xdp(program.as_fd(), *ifindex, *mode).and_then(|link| {
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

/// Gives attachments of earlier processes this program.
fn update_all(
    program: BorrowedFd<'_>,
    links: Vec<(u32, Link)>,
    changes: &mut Changes,
) -> Result<(), AttachError> {
    for (ifindex, link) in links {
        let failed = |source| AttachError::Other { ifindex, source };
        let before = link.program();
        link.update(program).map_err(failed)?;
        changes.updated.push((ifindex, link, before));
    }
    Ok(())
}

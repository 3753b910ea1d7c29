use crate::link::xdp_mode;
use crate::pins::{Pins, Staged};
use crate::{AttachError, Link, XdpMode};
use libbpf_rs::Object;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// An XDP program's attachments to interfaces, which may have outlived the process that made them.
#[derive(Debug)]
pub(crate) struct Attachments {
    links: BTreeMap<u32, Link>,
    pins: Option<Pins>,
}

/// Attachments that may yet be given up, which ends them.
#[derive(Default)]
struct Fresh(Vec<(u32, Link)>);

impl Fresh {
    fn keep(mut self) -> Vec<(u32, Link)> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        for (ifindex, link) in &self.0 {
            // The interface may be gone, and then so is the attachment.
            link.detach()
                .unwrap_or_else(|error| tracing::debug!(ifindex, "was not attached: {error}"));
        }
    }
}

/// What attaching has changed so far, which is undone if it fails.
#[derive(Default)]
struct Changes {
    fresh: Fresh,
    staged: Staged,
    /// Attachments that had another mode than is wanted.
    switched: Vec<Switched>,
    /// Attachments with the program that they had before, which the kernel gives to those with CAP_SYS_ADMIN alone.
    updated: Vec<(u32, Link, io::Result<OwnedFd>)>,
}

/// An attachment that had another mode than is wanted.
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

    /// Attaches a program to all of the interfaces, or to none of them, and then nothing is kept that was not before. An
    /// attachment that was kept gets the program without a packet in between. Returns the interfaces whose attachment was
    /// made in another mode, and how long each had no program.
    pub(crate) fn attach(
        &mut self,
        program: BorrowedFd<'_>,
        tables: &Object,
        interfaces: &[u32],
        mode: XdpMode,
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        if let Some(pins) = &self.pins {
            pins.remove_unfinished();
        }
        let mut changes = Changes::default();
        match self.change(program, tables, interfaces, mode, &mut changes) {
            Ok(gaps) => {
                let updated = changes
                    .updated
                    .into_iter()
                    .map(|(ifindex, link, _)| (ifindex, link));
                // An interface that went has taken its attachment with it.
                self.links
                    .retain(|_, link| link.interface().is_ok_and(|interface| interface.is_some()));
                self.links.extend(updated.chain(changes.fresh.keep()));
                Ok(gaps)
            }
            Err(error) => {
                self.undo(changes);
                Err(error)
            }
        }
    }

    /// Attaches to all of the interfaces, unless it fails on the way. Notes what it changes.
    fn change(
        &self,
        program: BorrowedFd<'_>,
        tables: &Object,
        interfaces: &[u32],
        mode: XdpMode,
        changes: &mut Changes,
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        let (mut taken_over, mut in_other_mode) = (Vec::new(), Vec::new());
        for ifindex in interfaces {
            let failed = |source| AttachError::Other {
                ifindex: *ifindex,
                source,
            };
            let Some(link) = self.pins.as_ref().and_then(|pins| pins.open_link(*ifindex)) else {
                changes
                    .fresh
                    .0
                    .push((*ifindex, Link::xdp(program, *ifindex, mode)?));
                continue;
            };
            match xdp_mode(*ifindex).map_err(failed)? {
                Some(other) if other != mode => in_other_mode.push((*ifindex, link, other)),
                _ => taken_over.push((*ifindex, link)),
            }
        }
        if let Some(pins) = &self.pins {
            pins.stage_tables(tables, &mut changes.staged)?;
            let Changes { fresh, staged, .. } = changes;
            fresh
                .0
                .iter()
                .try_for_each(|(ifindex, link)| pins.stage_link(*ifindex, link, staged))?;
        }
        let mut gaps = Vec::new();
        // One interface after the other, so that copies by the others fill the gap.
        for (ifindex, link, old) in in_other_mode {
            let begin = Instant::now();
            self.switch(program, (ifindex, link, old), mode, changes)?;
            gaps.push((ifindex, begin.elapsed()));
        }
        for (ifindex, link) in taken_over {
            let failed = |source| AttachError::Other { ifindex, source };
            let before = link.program();
            link.update(program).map_err(failed)?;
            changes.updated.push((ifindex, link, before));
        }
        changes.staged.commit()?;
        Ok(gaps)
    }

    /// Puts back what was there before.
    fn undo(
        &self,
        Changes {
            fresh,
            staged,
            switched,
            updated,
        }: Changes,
    ) {
        // The old programs come back when nothing is in their place.
        drop((fresh, staged));
        switched
            .iter()
            .for_each(|switched| self.switch_back(switched));
        for (ifindex, link, before) in updated {
            // The interface may be gone, and then so is the attachment.
            before
                .and_then(|before| link.update(before.as_fd()))
                .unwrap_or_else(|error| tracing::warn!(ifindex, "has the new program: {error}"));
        }
    }

    /// Whether the program judges packets, and not that of an earlier process.
    pub(crate) fn are_in_force(&self) -> bool {
        self.pins.is_none() || !self.links.is_empty()
    }

    /// Ends what earlier processes attached to other interfaces; returns these.
    pub(crate) fn release_others(&self) -> io::Result<Vec<u32>> {
        self.pins
            .as_ref()
            .map_or(Ok(Vec::new()), |pins| pins.release_others(&self.links))
    }

    /// Ends all of them.
    pub(crate) fn detach(self) -> io::Result<()> {
        self.pins.map_or(Ok(()), |pins| pins.remove())
    }

    /// Makes an attachment again in another mode: the kernel changes none in place.
    fn switch(
        &self,
        program: BorrowedFd<'_>,
        (ifindex, link, old): (u32, Link, XdpMode),
        wanted: XdpMode,
        changes: &mut Changes,
    ) -> Result<(), AttachError> {
        let failed = |source| AttachError::Other { ifindex, source };
        let before = Switched {
            ifindex,
            program: link.program().map_err(failed)?,
            mode: old,
        };
        link.detach().map_err(failed)?;
        changes.switched.push(before);
        let link = Link::xdp(program, ifindex, wanted)?;
        let Changes { fresh, staged, .. } = changes;
        let staging = self
            .pins
            .as_ref()
            .map_or(Ok(()), |pins| pins.stage_link(ifindex, &link, staged));
        fresh.0.push((ifindex, link));
        staging
    }

    fn switch_back(
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
            tracing::error!("elimination is not as it was before: {error}");
        }
    }
}

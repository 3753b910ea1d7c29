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
            link.detach().unwrap_or_else(|error| tracing::debug!(ifindex, "was not attached: {error}"));
        }
    }
}

/// An attachment that had another mode than is wanted.
struct Switched {
    ifindex: u32,
    program: OwnedFd,
    mode: XdpMode,
}

impl Attachments {
    pub(crate) fn new(pins: Option<Pins>) -> Self {
        Attachments { links: BTreeMap::new(), pins }
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
        let (mut taken_over, mut in_other_mode) = (Vec::new(), Vec::new());
        let (mut fresh, mut staged) = (Fresh::default(), Staged::default());
        for ifindex in interfaces {
            let failed = |source| AttachError::Other { ifindex: *ifindex, source };
            let Some(link) = self.pins.as_ref().and_then(|pins| pins.open_link(*ifindex)) else {
                fresh.0.push((*ifindex, Link::xdp(program, *ifindex, mode)?));
                continue;
            };
            match xdp_mode(*ifindex).map_err(failed)? {
                Some(other) if other != mode => in_other_mode.push((*ifindex, link, other)),
                _ => taken_over.push((*ifindex, link)),
            }
        }
        if let Some(pins) = &self.pins {
            pins.stage_tables(tables, &mut staged)?;
            fresh.0.iter().try_for_each(|(ifindex, link)| pins.stage_link(*ifindex, link, &mut staged))?;
        }
        let mut switched = Vec::new();
        let mut gaps = Vec::new();
        // One interface after the other, so that copies by the others fill the gap.
        for (ifindex, link, old) in in_other_mode {
            let begin = Instant::now();
            let result =
                self.switch(program, (ifindex, link, old), mode, &mut switched, &mut fresh, &mut staged);
            if let Err(error) = result {
                // The old programs come back when nothing is in their place.
                drop((fresh, staged));
                switched.iter().for_each(|switched| self.switch_back(switched));
                return Err(error);
            }
            gaps.push((ifindex, begin.elapsed()));
        }
        for (ifindex, link) in &taken_over {
            link.update(program).map_err(|source| AttachError::Other { ifindex: *ifindex, source })?;
        }
        staged.commit()?;
        // An interface that went has taken its attachment with it.
        self.links.retain(|_, link| link.interface().is_ok_and(|interface| interface.is_some()));
        self.links.extend(taken_over.into_iter().chain(fresh.keep()));
        Ok(gaps)
    }

    /// Whether the program judges packets, and not that of an earlier process.
    pub(crate) fn are_in_force(&self) -> bool {
        self.pins.is_none() || !self.links.is_empty()
    }

    /// Ends what earlier processes attached to other interfaces; returns these.
    pub(crate) fn release_others(&self) -> io::Result<Vec<u32>> {
        self.pins.as_ref().map_or(Ok(Vec::new()), |pins| pins.release_others(&self.links))
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
        switched: &mut Vec<Switched>,
        fresh: &mut Fresh,
        staged: &mut Staged,
    ) -> Result<(), AttachError> {
        let failed = |source| AttachError::Other { ifindex, source };
        let before = Switched { ifindex, program: link.program().map_err(failed)?, mode: old };
        link.detach().map_err(failed)?;
        switched.push(before);
        let link = Link::xdp(program, ifindex, wanted)?;
        let staging = self.pins.as_ref().map_or(Ok(()), |pins| pins.stage_link(ifindex, &link, staged));
        fresh.0.push((ifindex, link));
        staging
    }

    fn switch_back(&self, Switched { ifindex, program, mode }: &Switched) {
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

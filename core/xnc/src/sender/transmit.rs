//! The next datagram: what goes before what, and what a frame holds.

use super::queue::{Class, Waiting};
use super::{CODED_OVERHEAD, Sender, Transmit};
use crate::config::Config;
use crate::memory::cost;
use crate::outstanding::Content;
use crate::path::QUIC_OVERHEAD;
use crate::pool::{Fate, Hint};
use crate::scheme::{Behaviour, Candidate, Extra, Place, Recovery, View};
use hawser_units::{Instant, PathId};
use hawser_wire::xnc::{PacketHeader, emit_ping};

impl Sender {
    /// The next datagram that a path has window for.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.poll_planned(now)
            .or_else(|| self.poll_probe(now))
            .or_else(|| self.poll_urgent(now))
            .or_else(|| self.poll_shot(now))
            .or_else(|| self.poll_again(now))
            .or_else(|| self.poll_extra(now))
            .or_else(|| self.poll_waiting(now))
    }

    pub(super) fn poll_planned(&mut self, now: Instant) -> Option<Transmit> {
        while let Some((path, content)) = self.planned.pop_front() {
            if !self.is_wanted(now, content) {
                self.drop_planned(now, content);
            } else if let Some(transmit) = self.transmit(now, path, content) {
                return Some(transmit);
            }
        }
        None
    }

    fn poll_probe(&mut self, now: Instant) -> Option<Transmit> {
        let path = self
            .paths
            .iter()
            .find(|path| path.next_probe <= now && path.fits_ping())?
            .id;
        self.transmit(now, path, Content::Ping)
    }

    /// Urgent packets go before what was lost, but not so many that nothing of that goes.
    fn poll_urgent(&mut self, now: Instant) -> Option<Transmit> {
        let is_next = self.queue.order().first() == Some(&Class::Urgent);
        is_next
            .then(|| self.poll_class(now, Class::Urgent))
            .flatten()
    }

    fn poll_again(&mut self, now: Instant) -> Option<Transmit> {
        while let Some(&id) = self.again.front() {
            let Some(original) = self
                .pool
                .get(id)
                .filter(|original| original.fate == Fate::Lost)
            else {
                self.again.pop_front();
                continue;
            };
            let candidate = self.candidate(original.bytes.len(), original.hint, Class::Live);
            let place = self.place(now, candidate);
            let path = self.first_of(place, Content::Original(id))?;
            self.again.pop_front();
            if let Some(original) = self.pool.get_mut(id) {
                original.fate = Fate::Sent;
            }
            return self.transmit(now, path, Content::Original(id));
        }
        None
    }

    fn poll_extra(&mut self, now: Instant) -> Option<Transmit> {
        let (path, content) = match self.ask(now, |behaviour, view| behaviour.extra(view))? {
            Extra::Copy { id, path } => (path, Content::Original(id)),
            Extra::Coded { start, count, path } => (path, Content::Coded { start, count }),
        };
        self.transmit(now, path, content)
    }

    fn poll_waiting(&mut self, now: Instant) -> Option<Transmit> {
        let order = self.queue.order();
        order
            .into_iter()
            .find_map(|class| self.poll_class(now, class))
    }

    /// The first packet of a class, unless it has to wait.
    fn poll_class(&mut self, now: Instant, class: Class) -> Option<Transmit> {
        loop {
            let front = self.queue.front(class, now, &self.config)?;
            let (hint, size) = (front.hint, front.bytes.len());
            let is_full = self.pool.bytes() + cost(&front.bytes) > self.config.pool_limit.0;
            if is_full && self.parts.recovery == Recovery::Resend {
                return None;
            }
            let candidate = self.candidate(size, hint, class);
            let place = self.place(now, candidate);
            if place == Place::Wait {
                return None;
            }
            let Some(Waiting { bytes, hint, since }) = self.queue.pop(class, now, &self.config)
            else {
                continue;
            };
            let path = self.first_of(place, Content::Original(self.pool.next()))?;
            if is_full {
                self.stats.given_up += self.pool.drop_first_range();
            }
            let stats = &mut self.stats.paths[path.index()];
            stats.first += 1;
            stats.first_bytes += (bytes.len() + PacketHeader::LEN) as u64;
            let id = self.pool.push(now, since, bytes, hint);
            return self.emit(now, path, Content::Original(id));
        }
    }

    fn place(&mut self, now: Instant, candidate: Candidate) -> Place {
        self.ask(now, |behaviour, view| behaviour.place(view, candidate))
    }

    fn candidate(&self, bytes: usize, hint: Hint, class: Class) -> Candidate {
        let is_bulk = class == Class::Rest;
        let yields = is_bulk && self.queue.has_live();
        let Config {
            queue_target,
            queue_target_shared,
            ..
        } = self.config;
        let queue = if yields {
            queue_target_shared.min(queue_target)
        } else {
            queue_target
        };
        Candidate {
            size: PacketHeader::LEN + bytes,
            flow_hash: hint.flow_hash,
            queue,
            is_bulk,
        }
    }

    /// What the scheme says to a question about how things are.
    fn ask<T>(
        &mut self,
        now: Instant,
        question: impl FnOnce(&mut dyn Behaviour, &View<'_>) -> T,
    ) -> T {
        let view = View {
            now,
            config: &self.config,
            paths: &self.paths,
            pool: &self.pool,
            waiting: self.queue.len(),
        };
        question(self.parts.behaviour.as_mut(), &view)
    }

    /// The first path of a place; what is to go on others is planned.
    fn first_of(&mut self, place: Place, content: Content) -> Option<PathId> {
        match place {
            Place::Wait => None,
            Place::On(path) => Some(path),
            Place::OnAll(paths) => {
                let mut paths = paths.iter();
                let first = paths.next()?;
                self.planned.extend(paths.map(|path| (path, content)));
                Some(first)
            }
        }
    }

    /// A datagram besides the first transmission of a packet; none when there is nothing to send any more.
    fn transmit(&mut self, now: Instant, path: PathId, content: Content) -> Option<Transmit> {
        let transmit = self.emit(now, path, content)?;
        let bytes = transmit.datagram.len() as u64;
        let stats = &mut self.stats.paths[path.index()];
        if content == Content::Ping {
            stats.pings += 1;
            stats.ping_bytes += bytes;
        } else {
            stats.recovery += 1;
            stats.recovery_bytes += bytes;
            self.charge(content, transmit.datagram.len());
        }
        Some(transmit)
    }

    /// What is sent once more for a flow, its turns pay for.
    fn charge(&mut self, content: Content, bytes: usize) {
        let (Content::Original(first) | Content::Coded { start: first, .. }) = content else {
            return;
        };
        if let Some(original) = self.pool.get(first) {
            self.queue.charge(original.hint.flow_hash, bytes);
        }
    }

    fn emit(&mut self, now: Instant, path: PathId, content: Content) -> Option<Transmit> {
        let rests = self.rests(now);
        let known = self.paths.get_mut(path)?;
        let number = known.outstanding.next();
        let datagram = match content {
            Content::Ping => emit_ping(number),
            Content::Original(id) => {
                let original = self.pool.get_mut(id)?;
                original.in_flight += 1;
                original.path = Some(path);
                let mut datagram = Vec::with_capacity(PacketHeader::LEN + original.bytes.len());
                datagram.extend(header(1, number, id).emit());
                datagram.extend_from_slice(&original.bytes);
                datagram
            }
            Content::Coded { start, count } => {
                let ids = start..start + u64::from(count);
                let originals = ids.map(|id| self.pool.get(id).map(|original| &original.bytes[..]));
                let originals: Vec<&[u8]> = originals.collect::<Option<_>>()?;
                let longest = originals.iter().map(|bytes| bytes.len()).max()?;
                let mut datagram = Vec::with_capacity(CODED_OVERHEAD + longest);
                datagram.extend(header(count, number, start).emit());
                hawser_coding::encode(&originals, seed(path, number, start), &mut datagram);
                datagram
            }
        };
        let under_way = known.outstanding_bytes();
        known.outstanding.push(
            now,
            content,
            datagram.len() as u64 + QUIC_OVERHEAD,
            under_way,
        );
        known.hand_out(datagram.len());
        known.next_probe = now + known.probe_interval(&self.config, rests);
        Some(Transmit { path, datagram })
    }
}

/// Numbers are cut short to what the frame has room for.
fn header(count: u8, transmission: u64, start: u64) -> PacketHeader {
    PacketHeader {
        count,
        transmission: transmission as u16,
        start: (start & 0x00ff_ffff) as u32,
    }
}

/// The seed of a combination, which both ends know.
pub(crate) fn seed(path: PathId, transmission: u64, start: u64) -> u64 {
    (u64::from(u8::from(path)) << 56) ^ (start << 24) ^ transmission
}

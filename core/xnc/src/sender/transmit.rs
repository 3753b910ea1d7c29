//! Selection and encoding of the next datagram.

use super::queue::{Class, QueuedPacket};
use super::{CODED_OVERHEAD, Sender, Transmit};
use crate::config::Config;
use crate::memory::cost;
use crate::path::QUIC_OVERHEAD;
use crate::scheme::{Candidate, Extra, PathChoice, Recovery, Scheduler, View};
use crate::sent_packets::{Fate, Hint};
use crate::sent_transmissions::Content;
use hawser_units::{Instant, PathId};
use hawser_wire::xnc::{PacketHeader, emit_ping};

impl Sender {
    /// Returns the next datagram that a path has window for.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.poll_planned(now)
            .or_else(|| self.poll_probe(now))
            .or_else(|| self.poll_urgent(now))
            .or_else(|| self.poll_shot(now))
            .or_else(|| self.poll_retransmission(now))
            .or_else(|| self.poll_extra(now))
            .or_else(|| self.poll_waiting(now))
    }

    pub(super) fn poll_planned(&mut self, now: Instant) -> Option<Transmit> {
        while let Some((path, content)) = self.planned.pop_front() {
            if !self.is_useful(now, content) {
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

    /// Sends urgent packets before recovery packets, but leaves room for some of those.
    fn poll_urgent(&mut self, now: Instant) -> Option<Transmit> {
        let is_next = self.queue.order().first() == Some(&Class::Urgent);
        is_next
            .then(|| self.poll_class(now, Class::Urgent))
            .flatten()
    }

    fn poll_retransmission(&mut self, now: Instant) -> Option<Transmit> {
        while let Some(&id) = self.retransmissions.front() {
            let Some(original) = self
                .sent_packets
                .get(id)
                .filter(|original| original.fate == Fate::Lost)
            else {
                self.retransmissions.pop_front();
                continue;
            };
            let candidate = self.candidate(original.bytes.len(), original.hint, Class::Live);
            let choice = self.select_path(now, candidate);
            let path = self.first_path(choice, Content::Original(id))?;
            self.retransmissions.pop_front();
            if let Some(original) = self.sent_packets.get_mut(id) {
                original.fate = Fate::Sent;
            }
            return self.transmit(now, path, Content::Original(id));
        }
        None
    }

    fn poll_extra(&mut self, now: Instant) -> Option<Transmit> {
        let (path, content) =
            match self.query_scheduler(now, |scheduler, view| scheduler.extra(view))? {
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

    /// Sends the first packet of a class, unless it has to wait.
    fn poll_class(&mut self, now: Instant, class: Class) -> Option<Transmit> {
        loop {
            let front = self.queue.front(class, now, &self.config)?;
            let (hint, size) = (front.hint, front.bytes.len());
            let is_full =
                self.sent_packets.bytes() + cost(&front.bytes) > self.config.packet_memory.0;
            if is_full && self.parts.recovery == Recovery::Retransmit {
                return None;
            }
            let candidate = self.candidate(size, hint, class);
            let choice = self.select_path(now, candidate);
            if choice == PathChoice::Wait {
                return None;
            }
            let Some(QueuedPacket {
                bytes,
                hint,
                queued_at,
            }) = self.queue.pop(class, now, &self.config)
            else {
                continue;
            };
            let path = self.first_path(choice, Content::Original(self.sent_packets.next()))?;
            if is_full {
                self.stats.given_up += self.sent_packets.drop_first_range();
            }
            let stats = &mut self.stats.paths[path.index()];
            stats.first += 1;
            stats.first_bytes += (bytes.len() + PacketHeader::LEN) as u64;
            let id = self.sent_packets.push(now, queued_at, bytes, hint);
            return self.emit(now, path, Content::Original(id));
        }
    }

    fn select_path(&mut self, now: Instant, candidate: Candidate) -> PathChoice {
        self.query_scheduler(now, |scheduler, view| {
            scheduler.select_path(view, candidate)
        })
    }

    fn candidate(&self, bytes: usize, hint: Hint, class: Class) -> Candidate {
        let is_bulk = class == Class::Other;
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

    /// Calls the scheduler with the current state.
    fn query_scheduler<T>(
        &mut self,
        now: Instant,
        query: impl FnOnce(&mut dyn Scheduler, &View<'_>) -> T,
    ) -> T {
        let view = View {
            now,
            config: &self.config,
            paths: &self.paths,
            sent_packets: &self.sent_packets,
            waiting: self.queue.len(),
        };
        query(self.parts.scheduler.as_mut(), &view)
    }

    /// Returns the first selected path, and plans the transmissions on the others.
    fn first_path(&mut self, choice: PathChoice, content: Content) -> Option<PathId> {
        match choice {
            PathChoice::Wait => None,
            PathChoice::On(path) => Some(path),
            PathChoice::OnAll(paths) => {
                let mut paths = paths.iter();
                let first = paths.next()?;
                self.planned.extend(paths.map(|path| (path, content)));
                Some(first)
            }
        }
    }

    /// Returns a datagram other than the first transmission of a packet, or `None` if its content
    /// is not available any more.
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

    /// Charges the flow of a packet for the bytes of a recovery packet.
    fn charge(&mut self, content: Content, bytes: usize) {
        let (Content::Original(first) | Content::Coded { start: first, .. }) = content else {
            return;
        };
        if let Some(original) = self.sent_packets.get(first) {
            self.queue.charge(original.hint.flow_hash, bytes);
        }
    }

    fn emit(&mut self, now: Instant, path: PathId, content: Content) -> Option<Transmit> {
        let is_idle = self.is_idle(now);
        let known = self.paths.get_mut(path)?;
        let number = known.transmissions.next();
        let datagram = match content {
            Content::Ping => emit_ping(number),
            Content::Original(id) => {
                let original = self.sent_packets.get_mut(id)?;
                original.in_flight += 1;
                original.path = Some(path);
                let mut datagram = Vec::with_capacity(PacketHeader::LEN + original.bytes.len());
                datagram.extend(header(1, number, id).emit());
                datagram.extend_from_slice(&original.bytes);
                datagram
            }
            Content::Coded { start, count } => {
                let ids = start..start + u64::from(count);
                let originals = ids.map(|id| {
                    self.sent_packets
                        .get(id)
                        .map(|original| &original.bytes[..])
                });
                let originals: Vec<&[u8]> = originals.collect::<Option<_>>()?;
                let longest = originals.iter().map(|bytes| bytes.len()).max()?;
                let mut datagram = Vec::with_capacity(CODED_OVERHEAD + longest);
                datagram.extend(header(count, number, start).emit());
                hawser_coding::encode(&originals, seed(path, number, start), &mut datagram);
                datagram
            }
        };
        let in_flight = known.outstanding_bytes();
        known.transmissions.push(
            now,
            content,
            datagram.len() as u64 + QUIC_OVERHEAD,
            in_flight,
        );
        known.hand_out(datagram.len());
        known.next_probe = now + known.probe_interval(&self.config, is_idle);
        Some(Transmit { path, datagram })
    }
}

/// Creates a header. Numbers are truncated to the fields of the frame.
fn header(count: u8, transmission: u64, start: u64) -> PacketHeader {
    PacketHeader {
        count,
        transmission: transmission as u16,
        start: (start & 0x00ff_ffff) as u32,
    }
}

/// Returns the seed of a coded packet, which both ends derive.
pub(crate) fn seed(path: PathId, transmission: u64, start: u64) -> u64 {
    (u64::from(u8::from(path)) << 56) ^ (start << 24) ^ transmission
}

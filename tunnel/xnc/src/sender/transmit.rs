//! Selection and encoding of the next datagram.

use super::queue::{Class, QueuedPacket};
use super::{Sender, Transmit};
use crate::experiment::{Candidate, Extra, PathChoice, Scheduler, View};
use crate::frame::{PacketHeader, emit_ping};
use crate::liveness::Liveness;
use crate::recovery::{CODED_OVERHEAD, Recovery, RecoveryMethod};
use crate::sent_packets::{Hint, SentPackets};
use crate::sent_transmissions::{Content, QUIC_OVERHEAD};
use bytes::Bytes;
use hawser_coding::kernel::Kernel;
use hawser_units::{Instant, PathId};

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

    fn poll_planned(&mut self, now: Instant) -> Option<Transmit> {
        while let Some((path, content)) = self.recovery.poll_planned(now) {
            if let Some(transmit) = self.transmit(now, path, content) {
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

    /// Sends the packets of due shots for which there is window.
    pub(super) fn poll_shot(&mut self, now: Instant) -> Option<Transmit> {
        let (path, content) = self.recovery.poll_shot(now, &self.paths)?;
        self.transmit(now, path, content)
    }

    fn poll_retransmission(&mut self, now: Instant) -> Option<Transmit> {
        // A path may have become narrower since.
        if let Some(largest) = self.paths.largest_datagram() {
            self.recovery.give_up_larger(largest);
        }
        let (id, packet) = self.recovery.next_retransmission()?;
        let (size, hint) = (packet.bytes.len(), packet.hint);
        let choice = self.select_path(now, self.candidate(size, hint, Class::Live));
        let path = self.first_path(choice, id)?;
        self.recovery.pop_retransmission();
        self.transmit(now, path, Content::Original(id))
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
            let has_room = self.recovery.has_room_for(&front.bytes);
            if !has_room && self.recovery.method() == RecoveryMethod::Retransmit {
                return None;
            }
            let choice = self.select_path(now, self.candidate(size, hint, class));
            if choice == PathChoice::Wait {
                return None;
            }
            let Some(packet) = self.queue.pop(class, now, &self.config) else {
                continue;
            };
            let choice = self.duplicated(now, choice, size, hint);
            let path = self.first_path(choice, self.recovery.packets().next())?;
            self.recovery.make_room_for(&packet.bytes);
            return self.send_first(now, path, packet);
        }
    }

    /// Adds the next best path with window to the path of an urgent packet, if these are duplicated.
    /// A silent path gets no copies.
    fn duplicated(
        &mut self,
        now: Instant,
        choice: PathChoice,
        bytes: usize,
        hint: Hint,
    ) -> PathChoice {
        let PathChoice::On(first) = choice else {
            return choice;
        };
        if !(hint.urgent && self.config.duplicate_urgent) {
            return choice;
        }
        let size = PacketHeader::LEN + bytes;
        let others = self.paths.iter().filter(|path| {
            let is_silent = path.liveness(now) == Liveness::Silent;
            path.id != first && !is_silent && path.fits(size)
        });
        let second = others.min_by_key(|path| path.expected_delay(now, size));
        let Some(second) = second.map(|path| path.id) else {
            return choice;
        };
        self.stats.duplicated += 1;
        PathChoice::OnAll([first, second].into_iter().collect())
    }

    /// Sends a packet for the first time.
    fn send_first(&mut self, now: Instant, path: PathId, packet: QueuedPacket) -> Option<Transmit> {
        let QueuedPacket {
            bytes,
            hint,
            queued_at,
        } = packet;
        let stats = &mut self.stats.paths[path.index()];
        stats.first += 1;
        stats.first_bytes += (bytes.len() + PacketHeader::LEN) as u64;
        let id = self.recovery.packets().next();
        let number = self.paths.get(path)?.transmissions.next();
        let datagram = bytes.into_datagram(header(1, number, id));
        let bytes = datagram.slice(PacketHeader::LEN..);
        self.recovery.add_packet(now, queued_at, bytes, hint);
        self.recovery.record_transmission(id, path)?;
        self.hand_over(now, path, Content::Original(id), datagram)
    }

    fn select_path(&mut self, now: Instant, candidate: Candidate) -> PathChoice {
        self.query_scheduler(now, |scheduler, view| {
            scheduler.select_path(view, candidate)
        })
    }

    fn candidate(&self, bytes: usize, hint: Hint, class: Class) -> Candidate {
        let is_bulk = class == Class::Other;
        let shared = match is_bulk && self.queue.has_live() {
            true => self.config.experiment.queue_target_shared,
            false => self.config.experiment.queue_target,
        };
        Candidate {
            size: PacketHeader::LEN + bytes,
            flow_hash: hint.flow_hash,
            queue: shared.min(self.config.experiment.queue_target),
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
            sent_packets: self.recovery.packets(),
            waiting: self.queue.len(),
        };
        query(self.scheduler.as_mut(), &view)
    }

    /// Returns the first selected path for packet `id`, and plans its copies on the others.
    fn first_path(&mut self, choice: PathChoice, id: u64) -> Option<PathId> {
        match choice {
            PathChoice::Wait => None,
            PathChoice::On(path) => Some(path),
            PathChoice::OnAll(paths) => {
                let first = paths.iter().next()?;
                self.recovery.plan_copies(id, paths.without(first));
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
        if let Some(packet) = self.recovery.packets().get(first) {
            self.queue.charge(packet.hint.flow_hash, bytes);
        }
    }

    fn emit(&mut self, now: Instant, path: PathId, content: Content) -> Option<Transmit> {
        let number = self.paths.get(path)?.transmissions.next();
        let kernel = self.config.kernel;
        let datagram = encode(&mut self.recovery, path, number, content, kernel)?;
        self.hand_over(now, path, content, datagram.into())
    }

    /// Records the next transmission over a path.
    fn hand_over(
        &mut self,
        now: Instant,
        path: PathId,
        content: Content,
        datagram: Bytes,
    ) -> Option<Transmit> {
        let is_idle = self.is_idle(now);
        let known = self.paths.get_mut(path)?;
        let (bytes, in_flight) = (datagram.len(), known.outstanding_bytes());
        known
            .transmissions
            .push(now, content, bytes as u64 + QUIC_OVERHEAD, in_flight);
        known.hand_out(bytes);
        known.note_full(now, bytes);
        known.next_probe = now + known.probe_interval(now, &self.config, is_idle);
        Some(Transmit { path, datagram })
    }
}

/// Returns the datagram for transmission `number` over `path`; `None` if its content is not
/// available any more.
fn encode(
    recovery: &mut Recovery,
    path: PathId,
    number: u64,
    content: Content,
    kernel: Kernel,
) -> Option<Vec<u8>> {
    match content {
        Content::Ping => Some(emit_ping(number)),
        Content::Original(id) => {
            let packet = recovery.record_transmission(id, path)?;
            let mut datagram = Vec::with_capacity(PacketHeader::LEN + packet.bytes.len());
            datagram.extend(header(1, number, id).emit());
            datagram.extend_from_slice(&packet.bytes);
            Some(datagram)
        }
        Content::Coded { start, count } => {
            let seed = seed(path, number, start);
            encode_coded(
                recovery.packets(),
                header(count, number, start),
                start,
                seed,
                kernel,
            )
        }
    }
}

/// Returns a coded packet over the packets from `start` on.
fn encode_coded(
    packets: &SentPackets,
    header: PacketHeader,
    start: u64,
    seed: u64,
    kernel: Kernel,
) -> Option<Vec<u8>> {
    let ids = start..start + u64::from(header.count);
    let covered = ids.map(|id| Some(&packets.get(id)?.bytes[..]));
    let covered: Vec<&[u8]> = covered.collect::<Option<_>>()?;
    let longest = covered.iter().map(|bytes| bytes.len()).max()?;
    let mut datagram = Vec::with_capacity(CODED_OVERHEAD + longest);
    datagram.extend(header.emit());
    hawser_coding::encode_with(kernel, &covered, seed, &mut datagram);
    Some(datagram)
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

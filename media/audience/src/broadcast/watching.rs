//! The subscribers of a broadcast.

use super::{Broadcast, BroadcastEvent, Command, NOTABLE, Outgoing, TOO_LATE, Watcher};
use crate::cache::Cache;
use crate::catch_up::CatchUp;
use crate::choice::Choice;
use crate::sending::Sending;
use crate::subscriber::Subscriber;
use hawser_fanout::{Budget, Frame, Selection};
use hawser_objects::{EndReason, HostEvent, IPV4_UDP, IPV6_UDP};
use hawser_packets::feedback::Feedback;
use hawser_packets::media::{Header, Hop, MediaTime, write_hop};
use hawser_units::{ByteSize, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

impl Broadcast {
    pub(super) fn take_host_events(&mut self, now: Instant) {
        while let Some(event) = self.serving.as_mut().and_then(|s| s.host.poll_event()) {
            match event {
                HostEvent::Opened { .. } => {}
                HostEvent::Subscribed {
                    session,
                    tracks,
                    any_encoding,
                } => self.select(now, session, tracks, any_encoding),
                HostEvent::Report {
                    session,
                    number,
                    report,
                } => self.report(now, session, number, &report),
                HostEvent::Ended { session, reason } => self.leave(session, reason),
            }
        }
    }

    fn select(&mut self, now: Instant, session: u32, tracks: Vec<(u32, u8)>, any_encoding: bool) {
        let Some(serving) = &self.serving else { return };
        let Some(address) = serving.host.address(session) else {
            return;
        };
        let selected = tracks.into_iter().filter(|(_, layers)| *layers > 0);
        let selected: BTreeMap<u32, u8> = selected.collect();
        if !self.watchers.contains_key(&session) {
            self.add(now, session, address);
        }
        let encodings = self.serving.as_ref().map(|serving| &serving.encodings);
        let encodings = encodings.filter(|_| any_encoding).cloned();
        let rates = std::mem::take(&mut self.rates);
        self.change(session, |watcher| {
            let choice = &mut watcher.choice;
            choice.select(selected, encodings.as_ref());
            let rate = watcher.subscriber.rate();
            if let Some(number) = rate.and_then(|rate| choice.next(now, rate, &rates)) {
                choice.set(now, number);
            }
        });
        self.rates = rates;
        self.answer(now, session);
    }

    /// Changes the selection of a subscriber, and has the sender of packets apply it.
    fn change(&mut self, session: u32, change: impl FnOnce(&mut Watcher)) {
        let Some(watcher) = self.watchers.get_mut(&session) else {
            return;
        };
        let before = layers_by_alias(&watcher.choice);
        change(watcher);
        let after = layers_by_alias(&watcher.choice);
        watcher
            .catching_up
            .retain(|alias, _| after.get(alias).is_some_and(|layers| *layers > 0));
        for alias in before.keys().filter(|alias| !after.contains_key(alias)) {
            let alias = *alias;
            self.commands
                .push_back(Command::Unsubscribe { session, alias });
        }
        for (alias, layers) in after {
            match before.get(&alias) {
                None => self.begin(session, alias, layers),
                Some(before) if *before != layers => self.commands.push_back(Command::Select {
                    session,
                    alias,
                    layers,
                }),
                Some(_) => {}
            }
        }
    }

    fn add(&mut self, now: Instant, session: u32, address: SocketAddr) {
        let control = (self.make_control)(now);
        let overhead = match address.ip().to_canonical() {
            IpAddr::V4(_) => IPV4_UDP,
            IpAddr::V6(_) => IPV6_UDP,
        };
        let mut subscriber = Subscriber::new(control, overhead, self.cache.next());
        // It has no selection yet.
        let budget = self.rates.budget(
            &BTreeSet::new(),
            subscriber.rate(),
            &Budget::UNLIMITED,
            true,
        );
        subscriber.set_budget(now, budget);
        self.watchers.insert(
            session,
            Watcher {
                address,
                subscriber,
                choice: Choice::new(),
                catching_up: BTreeMap::new(),
                sending: Sending::new(),
                budget,
            },
        );
        self.commands.push_back(Command::Add {
            session,
            address,
            budget,
        });
        self.events
            .push_back(BroadcastEvent::Joined { session, address });
    }

    /// Begins a track for a subscriber: the frames of the cache at once, later ones as they arrive. An
    /// encoding that is not sent at present has 0 layers.
    fn begin(&mut self, session: u32, alias: u32, layers: u8) {
        if layers > 0 {
            self.catch_up(session, alias, layers);
        }
        self.commands.push_back(Command::Subscribe {
            session,
            alias,
            selection: Selection {
                layers,
                join: Frame::FIRST,
            },
        });
    }

    fn catch_up(&mut self, session: u32, alias: u32, layers: u8) {
        let is_complete = |object: &_| self.is_complete(object);
        let catch_up = CatchUp::begin(&self.cache, alias, layers, is_complete);
        let cached = catch_up.cached(&self.cache);
        let Some(watcher) = self.watchers.get_mut(&session) else {
            return;
        };
        for id in cached {
            watcher.sending.send_earlier(id);
        }
        watcher.catching_up.insert(alias, catch_up);
        self.catching_up.insert(session);
        self.sending.insert(session);
    }

    fn report(&mut self, now: Instant, session: u32, number: u64, report: &Feedback) {
        let publisher_now = self.publisher_time(now);
        let Some(watcher) = self.watchers.get_mut(&session) else {
            return;
        };
        let subscriber = &mut watcher.subscriber;
        let before = subscriber.stats().acknowledged;
        let lost = subscriber.handle_feedback(now, number, report, &self.cache);
        let acknowledged = subscriber.stats().acknowledged - before;
        if let Some(serving) = &mut self.serving {
            serving
                .host
                .handle_acknowledged(session, acknowledged as usize);
        }
        for id in lost {
            let number = self.cache.find(&id);
            let packet = number.and_then(|number| self.cache.get(number));
            let is_of_use = packet.is_some_and(|p| in_time(publisher_now, p.header.deadline));
            if is_of_use {
                watcher.sending.repeat(id);
                self.sending.insert(session);
            }
        }
        let mut poses = self.watchers.values().map(|w| w.subscriber.pose());
        let only = (self.watchers.len() == 1).then(|| poses.next()).flatten();
        self.upstream.set_pose(only.flatten());
        self.answer(now, session);
    }

    fn leave(&mut self, session: u32, reason: EndReason) {
        if self.watchers.remove(&session).is_some() {
            self.commands.push_back(Command::Remove { session });
            self.events
                .push_back(BroadcastEvent::Left { session, reason });
        }
    }

    fn answer(&mut self, now: Instant, session: u32) {
        if let (Some(watcher), Some(serving)) = (self.watchers.get_mut(&session), &mut self.serving)
        {
            let stamp = watcher.subscriber.stamp(now);
            serving.host.send_status(session, stamp);
        }
    }

    /// Chooses the encoding for each subscriber.
    pub(super) fn choose_encodings(&mut self, now: Instant) {
        let others = self.watchers.iter().filter_map(|(session, watcher)| {
            let rate = watcher.subscriber.rate()?;
            let number = watcher.choice.next(now, rate, &self.rates)?;
            Some((*session, number))
        });
        let others: Vec<(u32, usize)> = others.collect();
        for (session, number) in others {
            self.change(session, |watcher| watcher.choice.set(now, number));
        }
    }

    /// Sets the budgets that have changed.
    pub(super) fn set_budgets(&mut self, now: Instant) {
        for (session, watcher) in &mut self.watchers {
            let rate = watcher.subscriber.rate();
            let tracks = watcher.choice.tracks();
            let bears_bursts = watcher.subscriber.bears_bursts(now);
            let before = &watcher.budget;
            let budget = self.rates.budget(tracks, rate, before, bears_bursts);
            if is_notable(&watcher.budget, &budget) {
                watcher.budget = budget;
                watcher.subscriber.set_budget(now, budget);
                let session = *session;
                self.commands
                    .push_back(Command::SetBudget { session, budget });
            }
        }
    }

    /// Returns the next packet to send from the cache.
    pub(super) fn poll_cached(&mut self, now: Instant) -> Option<Outgoing> {
        let publisher_now = self.publisher_time(now);
        let hop = &self.serving.as_ref()?.hop;
        let mut next = None;
        self.sending.retain(|session| {
            let Some(watcher) = self.watchers.get_mut(session) else {
                return false;
            };
            if next.is_none() {
                let sent = watcher.poll_cached(now, publisher_now, &self.cache, hop);
                next = sent.map(|(priority, outgoing)| (*session, priority, outgoing));
            }
            watcher.sending.poll_timeout().is_some()
        });
        let (session, priority, outgoing) = next?;
        let watcher = self.watchers.get(&session)?;
        let size = ByteSize(outgoing.datagram.len() as u64) + watcher.subscriber.overhead();
        self.commands.push_back(Command::Spend {
            session,
            priority,
            bytes: size.0,
        });
        Some(outgoing)
    }

    /// Returns the publisher's time; `None` before the clocks are related.
    fn publisher_time(&self, now: Instant) -> Option<Instant> {
        let ahead = self.upstream.publisher_ahead_nanos()?;
        let nanos = i128::from(now.as_nanos()) + i128::from(ahead);
        u64::try_from(nanos).ok().map(Instant::from_nanos)
    }
}

impl Watcher {
    /// Returns the next packet of the cache to send now, with its priority.
    fn poll_cached(
        &mut self,
        now: Instant,
        publisher_now: Option<Instant>,
        cache: &Cache,
        hop: &Hop,
    ) -> Option<(u8, Outgoing)> {
        while let Some((id, is_repeated)) = self.sending.poll(now) {
            let number = cache.find(&id);
            let Some(packet) = number.and_then(|number| cache.get(number)) else {
                continue;
            };
            if !in_time(publisher_now, packet.header.deadline) {
                continue;
            }
            let mut datagram = packet.datagram.to_vec();
            let Some(header) = datagram.first_chunk_mut::<{ Header::LEN }>() else {
                continue;
            };
            write_hop(header, hop);
            let size = ByteSize(datagram.len() as u64) + self.subscriber.overhead();
            let rate = self.subscriber.pacing_rate();
            self.sending.handle_sent(now, size, rate);
            self.subscriber.handle_cached(id, is_repeated);
            let outgoing = Outgoing {
                to: Some(self.address),
                datagram: Arc::from(datagram),
                ecn: self.subscriber.ecn(),
            };
            return Some((packet.header.priority, outgoing));
        }
        None
    }
}

/// Returns the number of layers that are sent of each selected track.
fn layers_by_alias(choice: &Choice) -> BTreeMap<u32, u8> {
    let aliases = choice.selected().keys();
    aliases
        .map(|alias| (*alias, choice.layers(*alias)))
        .collect()
}

/// Returns whether a packet that is sent now may arrive before its deadline.
fn in_time(publisher_now: Option<Instant>, deadline: MediaTime) -> bool {
    publisher_now.is_none_or(|now| deadline.nearest(now) > now + TOO_LATE)
}

/// Returns whether another budget is worth setting.
fn is_notable(old: &Budget, new: &Budget) -> bool {
    let rate = |budget: &Budget| budget.total.map(|total| total.bytes_per_second() as f64);
    let (Some(before), Some(after)) = (rate(old), rate(new)) else {
        return old != new;
    };
    let sent = |budget: &Budget| (budget.least_priority, budget.share);
    let limits = |budget: &Budget| budget.levels.map(|level| level.limit);
    (before - after).abs() > NOTABLE * before
        || sent(old) != sent(new)
        || limits(old) != limits(new)
}

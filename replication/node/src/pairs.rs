//! The keys that a node shares with the nodes at the other ends of its flows, while either of the two
//! replaces its key pair.
//!
//! A key of a pair is derived from one key of each node, and a receiver has two slots for keys. The
//! slot of a key is the parity of the sum of both generations. A change has four steps, and each
//! node learns from the statements of the other, which the controller passes on, when the next one
//! is safe:
//!
//! 1. the node publishes its next key beside the current one. Both nodes accept packets under the
//!    next key of the pair, and say so;
//! 2. each node sends under it as soon as it knows that the other one accepts it, and says so;
//! 3. the node that changes its key waits until all of its peers send under the next one,
//! 4. and for [`RETIRE_AFTER`]. Then it forgets its previous key, and the peers do too.
//!
//! A node that is away delays the third step; no packet is rejected in any of them. If both nodes of
//! a pair have two keys, the change of the one with the smaller name comes first, for both.

use crate::pair_key::{Party, SecretKey};
use hawser_model::Name;
use hawser_model::pair::{AssignedKeys, Generations, NodeKeys, PairState, Peer, PublicKey};
use hawser_shim::{KeyRing, KeySlot};
use hawser_units::Instant;
use hawser_wire::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time after which the last packets under a key have arrived.
const RETIRE_AFTER: Duration = Duration::from_secs(2);

/// The time after which making a key is tried again.
const MAKE_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The key pairs of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnKeys {
    /// The name of the node.
    pub name: Name,
    /// The saved keys, the oldest first: at most two.
    pub secrets: Vec<SecretKey>,
    /// The time since the newest one was made.
    pub age: Duration,
    /// The age at which a key is replaced.
    pub lifetime: Duration,
}

/// The keys that two nodes share now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PairRing {
    /// The keys that are accepted.
    pub ring: KeyRing,
    /// The slot of the key for packets to the peer; `None` while the peer has not confirmed any.
    pub send: Option<KeySlot>,
}

/// The state of the keys that two nodes share, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairStatus {
    /// The node's public keys, the newest last.
    pub own: Vec<PublicKey>,
    /// The peer's public keys, the newest last.
    pub peer: Vec<PublicKey>,
    /// The generations of the key for packets to the peer.
    pub sends: Option<Generations>,
    /// The reason that packets are not sent or not accepted.
    pub obstacle: Option<String>,
}

/// The work that is due on the node's own keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// A key is to be made that is newer than this one.
    Make(Option<u64>),
    /// The oldest key was forgotten.
    Retired,
}

/// The reason that a flow cannot use a pair's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// An operator has to act.
    Refused(String),
    /// The other node has to act, which it usually does at once.
    Waiting(String),
}

#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// The node's keys; `None` if it only has key files.
    own: Option<OwnKeys>,
    /// The peers whose keys are in the node's configuration.
    by_hand: BTreeSet<String>,
    /// `None` until a controller has sent public keys.
    assigned: Option<AssignedKeys>,
    /// The peers of the last assignment, and those of flows that are no longer assigned but still
    /// received.
    pairs: BTreeMap<Name, Pair>,
    make_at: Instant,
    retire_at: Option<Instant>,
    /// Whether a key is being made.
    is_making: bool,
    /// The time of the next attempt after a failure.
    not_before: Instant,
}

#[derive(Debug)]
struct Pair {
    peer: Peer,
    /// The keys, by slot.
    accepts: [Option<(Generations, Key)>; 2],
    sends: Option<Generations>,
    /// The incarnations and the peer's public keys from which the keys were derived.
    basis: Option<Basis>,
}

/// The incarnations of this node and of the peer, and the peer's public keys.
type Basis = (String, String, Vec<PublicKey>);

impl Pairs {
    pub(crate) fn new(
        own: Option<OwnKeys>,
        by_hand: BTreeSet<String>,
        saved: Option<AssignedKeys>,
        now: Instant,
    ) -> Self {
        let mut pairs = Pairs {
            make_at: now + own.as_ref().map_or(Duration::ZERO, OwnKeys::left),
            own,
            by_hand,
            ..Pairs::default()
        };
        if let Some(saved) = saved {
            pairs.assign(saved);
        }
        pairs
    }

    /// Uses the public keys of an assignment. Peers without a flow are kept until
    /// [`Pairs::forget_except`].
    pub(crate) fn assign(&mut self, mut keys: AssignedKeys) {
        for peer in &mut keys.peers {
            if let Some(pair) = self.pairs.get(&peer.node)
                && is_outdated(peer, &pair.peer)
            {
                *peer = pair.peer.clone();
            }
        }
        if let Some(own) = &self.own {
            for peer in keys.peers.iter().filter(|peer| peer.node != own.name) {
                self.pairs
                    .entry(peer.node.clone())
                    .or_insert_with(|| Pair::of(peer.clone()))
                    .peer = peer.clone();
            }
        }
        self.assigned = Some(keys);
        self.derive();
    }

    /// Changes the peers whose keys are in the node's configuration.
    pub(crate) fn set_by_hand(&mut self, by_hand: BTreeSet<String>) {
        self.by_hand = by_hand;
        self.derive();
    }

    /// Forgets the peers without a flow, except those of `received`.
    pub(crate) fn forget_except(&mut self, received: &BTreeSet<&Name>) {
        let assigned = self.assigned.iter().flat_map(|keys| &keys.peers);
        let assigned: BTreeSet<&Name> = assigned.map(|peer| &peer.node).collect();
        self.pairs
            .retain(|node, _| assigned.contains(node) || received.contains(node));
    }

    /// Adds a key that was made and saved.
    pub(crate) fn add(&mut self, secret: SecretKey, now: Instant) {
        self.is_making = false;
        if let Some(own) = &mut self.own {
            self.make_at = now + own.lifetime;
            own.secrets.push(secret);
        }
        self.derive();
    }

    /// Handles that no key could be made.
    pub(crate) fn handle_not_made(&mut self, now: Instant) {
        self.is_making = false;
        self.make_at = now + MAKE_AGAIN_AFTER;
        self.not_before = self.make_at;
    }

    /// Lets time pass. `is_connected` is whether a controller answers.
    pub(crate) fn poll(&mut self, now: Instant, is_connected: bool) -> Option<Due> {
        let own = self.own.as_ref()?;
        let newest = own.secrets.last().map(|secret| secret.generation);
        if own.secrets.len() > 1 {
            if !self.is_replaced() {
                self.retire_at = None;
                return None;
            }
            let at = *self.retire_at.get_or_insert(now + RETIRE_AFTER);
            return (at <= now).then(|| self.retire());
        }
        let is_due = self.make_at <= now || self.is_too_old(newest);
        // A change of a peer that this node has seen comes first.
        let is_quiet = self.pairs.values().all(|pair| pair.peer.keys.len() < 2);
        let is_possible = newest.is_none() || (is_connected && is_quiet);
        if !is_due || !is_possible || self.is_making || now < self.not_before {
            return None;
        }
        self.is_making = true;
        let least = self.least_generation().checked_sub(1);
        Some(Due::Make(newest.max(least)))
    }

    /// Returns when [`Pairs::poll`] is due although nothing else happens.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.retire_at
    }

    /// Returns the keys that are shared with each peer, except those of the configuration.
    pub(crate) fn rings(&self) -> BTreeMap<Name, PairRing> {
        let used = self.pairs.iter().filter(|(node, _)| !self.is_by_hand(node));
        used.map(|(node, pair)| (node.clone(), pair.ring()))
            .collect()
    }

    /// Returns whether packets of this peer can be accepted.
    pub(crate) fn can_receive(&self, peer: &Name) -> Result<(), Unusable> {
        if self.is_by_hand(peer) {
            return Ok(());
        }
        let pair = self.usable(peer)?;
        if pair.accepts.iter().any(Option::is_some) {
            return Ok(());
        }
        Err(Unusable::Refused(format!(
            "the public key of {peer} is not valid"
        )))
    }

    /// Returns whether packets can be sent to this peer.
    pub(crate) fn can_send(&self, peer: &Name) -> Result<(), Unusable> {
        self.can_receive(peer)?;
        if self.is_by_hand(peer) || self.pairs[peer].sends.is_some() {
            return Ok(());
        }
        Err(Unusable::Waiting(format!(
            "{peer} has not confirmed yet that it accepts packets under the key of this pair"
        )))
    }

    /// Returns whether packets of a flow that is no longer assigned can be accepted.
    pub(crate) fn still_receives(&self, peer: &Name) -> bool {
        self.can_receive(peer).is_ok()
    }

    /// Returns the private keys, the oldest first.
    pub(crate) fn secrets(&self) -> &[SecretKey] {
        self.own.as_ref().map_or(&[], |own| &own.secrets)
    }

    /// Returns the statement for the controller; `None` without a key.
    pub(crate) fn statement(&self) -> Option<NodeKeys> {
        let own = self.own.as_ref().filter(|own| !own.secrets.is_empty())?;
        let assigned = &self.assigned.as_ref()?.peers;
        let pairs = assigned
            .iter()
            .filter_map(|peer| self.pairs.get(&peer.node));
        Some(NodeKeys {
            keys: own.public(),
            pairs: (pairs.take(NodeKeys::MAX_PAIRS))
                .map(|pair| self.state(pair))
                .collect(),
        })
    }

    /// Returns the keys of the assignment, to save them.
    pub(crate) fn assigned(&self) -> Option<&AssignedKeys> {
        self.assigned.as_ref()
    }

    /// Returns the state of the keys that are shared with the peers of the assignment.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = (&Name, PairStatus)> {
        let own = self.own.as_ref().map_or_else(Vec::new, OwnKeys::public);
        let assigned = self.assigned.iter().flat_map(|keys| &keys.peers);
        let used = assigned.filter(|peer| !self.is_by_hand(&peer.node));
        used.map(move |peer| {
            let sends = self.pairs.get(&peer.node).and_then(|pair| pair.sends);
            let status = PairStatus {
                own: own.clone(),
                peer: peer.keys.clone(),
                sends,
                obstacle: self.can_send(&peer.node).err().map(Unusable::into_reason),
            };
            (&peer.node, status)
        })
    }

    fn is_by_hand(&self, peer: &Name) -> bool {
        self.by_hand.contains(peer.as_str())
    }

    /// Returns a pair whose keys are derived.
    fn usable(&self, peer: &Name) -> Result<&Pair, Unusable> {
        if self.own.as_ref().is_some_and(|own| own.secrets.is_empty()) {
            let reason = "this node has not made its key: the log says why";
            return Err(Unusable::Waiting(reason.to_owned()));
        }
        let Some(pair) = self.pairs.get(peer) else {
            return Err(Unusable::Refused(format!(
                "no [[peer]] is called {:?}, and there are no keys made by the nodes: add one with the key that both \
                 nodes share",
                peer.as_str()
            )));
        };
        let state = pair.peer.pair.as_ref();
        if state.is_some_and(|state| state.by_hand) {
            return Err(Unusable::Refused(format!(
                "{peer} uses a key file for this pair: name the same file here, or remove it there"
            )));
        }
        if pair.peer.keys.is_empty() {
            return Err(Unusable::Waiting(format!(
                "{peer} has no public key: it was revoked, or has never connected to the controller"
            )));
        }
        Ok(pair)
    }

    fn least_generation(&self) -> u64 {
        self.assigned
            .as_ref()
            .map_or(0, |keys| keys.least_generation)
    }

    fn is_too_old(&self, newest: Option<u64>) -> bool {
        newest.is_some_and(|newest| newest < self.least_generation())
    }

    /// Returns whether all peers send and accept packets under the newest key only.
    fn is_replaced(&self) -> bool {
        let newest = self.own.as_ref().and_then(|own| own.secrets.last());
        let Some(newest) = newest.map(|secret| secret.generation) else {
            return false;
        };
        let assigned = self.assigned.iter().flat_map(|keys| &keys.peers);
        let pairs = assigned.filter_map(|peer| self.pairs.get(&peer.node));
        pairs
            .filter(|pair| pair.is_derived() && !self.is_by_hand(&pair.peer.node))
            .all(|pair| {
                let theirs = pair.peer.pair.as_ref().and_then(|state| state.sends);
                theirs.is_some_and(|sends| sends.peer == newest)
                    && pair.sends.is_some_and(|sends| sends.own == newest)
            })
    }

    fn retire(&mut self) -> Due {
        self.retire_at = None;
        if let Some(own) = &mut self.own {
            own.secrets.remove(0);
        }
        self.derive();
        Due::Retired
    }

    fn state(&self, pair: &Pair) -> PairState {
        let by_hand = self.is_by_hand(&pair.peer.node);
        let accepts = pair.accepts.iter().flatten().filter(|_| !by_hand);
        PairState {
            node: pair.peer.node.clone(),
            by_hand,
            accepts: accepts.map(|(generations, _)| *generations).collect(),
            sends: pair.sends.filter(|_| !by_hand),
        }
    }

    /// Derives the keys of all pairs from the keys of the nodes.
    fn derive(&mut self) {
        let Some(own) = &self.own else { return };
        let incarnation = self.assigned.as_ref().map_or("", |keys| &keys.incarnation);
        let party = Party {
            name: &own.name,
            incarnation,
        };
        for pair in self.pairs.values_mut() {
            pair.derive(own, party);
        }
    }
}

impl Pair {
    fn of(peer: Peer) -> Pair {
        Pair {
            peer,
            accepts: [None, None],
            sends: None,
            basis: None,
        }
    }

    /// Returns whether keys are derived for packets of this pair.
    fn is_derived(&self) -> bool {
        let by_hand = self.peer.pair.as_ref().is_some_and(|state| state.by_hand);
        !by_hand && !self.peer.keys.is_empty()
    }

    fn derive(&mut self, own: &OwnKeys, party: Party<'_>) {
        let peer = Party {
            name: &self.peer.node,
            incarnation: &self.peer.incarnation,
        };
        let basis = Some((
            party.incarnation.to_owned(),
            self.peer.incarnation.clone(),
            self.peer.keys.clone(),
        ));
        let incarnations = |basis: &Option<Basis>| {
            basis
                .as_ref()
                .map(|(own, peer, _)| (own.clone(), peer.clone()))
        };
        if incarnations(&basis) != incarnations(&self.basis) {
            // The peer has other keys, although their generations may be the same.
            self.sends = None;
        }
        // A derivation costs as much as hundreds of packets.
        let known = self.accepts.iter().flatten();
        let known: BTreeMap<_, _> = known
            .filter(|_| basis == self.basis)
            .map(|(generations, key)| (*generations, key.clone()))
            .collect();
        let (mut accepts, mut order) = ([None, None], Vec::new());
        for (secret, public) in self.candidates(own) {
            let generations = Generations {
                own: secret.generation,
                peer: public.generation,
            };
            let derive = || secret.shared_with(party, peer, public);
            let key = known.get(&generations).cloned().or_else(derive);
            let place = &mut accepts[slot(generations).index()];
            // A peer whose keys are numbered wrongly keeps the first.
            if let Some(key) = key.filter(|_| place.is_none()) {
                *place = Some((generations, key));
                order.push(generations);
            }
        }
        self.sends = self.choose(&order);
        self.accepts = accepts;
        self.basis = basis;
    }

    /// Returns the keys from which those of the pair are derived, the oldest first: two pairs of them
    /// at most.
    fn candidates<'a>(&'a self, own: &'a OwnKeys) -> Vec<(&'a SecretKey, &'a PublicKey)> {
        if !self.is_derived() {
            return Vec::new();
        }
        let (mut ours, mut theirs) = (&own.secrets[..], &self.peer.keys[..]);
        if ours.len() > 1 && theirs.len() > 1 {
            if own.name < self.peer.node {
                theirs = &theirs[..1];
            } else {
                ours = &ours[..1];
            }
        }
        let all = ours
            .iter()
            .flat_map(|secret| theirs.iter().map(move |public| (secret, public)));
        all.take(2).collect()
    }

    /// Returns the key to send under: the newest one that the peer accepts, and never an older one
    /// than before.
    fn choose(&self, order: &[Generations]) -> Option<Generations> {
        let state = self.peer.pair.as_ref();
        let accepted = |generations: &Generations| {
            state.is_some_and(|state| state.accepts.contains(&generations.flipped()))
        };
        let newest = order.iter().rposition(accepted);
        let before = self
            .sends
            .and_then(|sends| order.iter().position(|generations| *generations == sends));
        newest.max(before).map(|index| order[index])
    }

    fn ring(&self) -> PairRing {
        let key = |entry: &Option<(Generations, Key)>| Some(entry.as_ref()?.1.clone());
        PairRing {
            ring: KeyRing {
                slots: self.accepts.each_ref().map(key),
            },
            send: self.sends.map(slot),
        }
    }
}

impl OwnKeys {
    /// Returns the time until the newest key is replaced; zero if there is none.
    fn left(&self) -> Duration {
        let left = self.lifetime.saturating_sub(self.age);
        if self.secrets.is_empty() {
            Duration::ZERO
        } else {
            left
        }
    }

    fn public(&self) -> Vec<PublicKey> {
        self.secrets.iter().map(SecretKey::public).collect()
    }
}

impl From<String> for Unusable {
    fn from(reason: String) -> Self {
        Unusable::Refused(reason)
    }
}

impl Unusable {
    pub(crate) fn into_reason(self) -> String {
        match self {
            Unusable::Refused(reason) | Unusable::Waiting(reason) => reason,
        }
    }
}

/// Returns whether the keys of a peer are older than the known ones. They come from a controller
/// that is behind, or was restored from a backup.
fn is_outdated(peer: &Peer, known: &Peer) -> bool {
    let newest = |peer: &Peer| peer.keys.last().map(|key| key.generation);
    peer.incarnation == known.incarnation && !peer.keys.is_empty() && newest(peer) < newest(known)
}

fn slot(generations: Generations) -> KeySlot {
    if (generations.own ^ generations.peer) & 1 == 0 {
        KeySlot::Zero
    } else {
        KeySlot::One
    }
}

use crate::keys::{AeadKey, PACKETS_PER_KEY, SessionKeys};
use hawser_packets::session::{Kind, Sealed};

/// The number of messages below the newest that are still accepted.
const WINDOW: u64 = 64;

/// One end of the messages of a session.
#[derive(Debug)]
pub(super) struct Channel {
    session: u32,
    sealing: AeadKey,
    opening: AeadKey,
    next: u64,
    window: ReplayWindow,
}

/// The message numbers that were accepted: the newest, and a bit for each of the 64 up to it.
#[derive(Debug, Default)]
struct ReplayWindow {
    newest: u64,
    accepted: u64,
}

/// The reason why a message of a session is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OpenError {
    /// The message was forged or changed, or is of another session.
    #[error("the message was forged, changed, or is of another session")]
    Forged,
    /// The message arrived before, or is older than the remembered ones.
    #[error("the message arrived before, or is older than the remembered ones")]
    Replayed,
}

/// The key has sealed all messages that it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UsedUp;

impl Channel {
    pub(super) fn of_viewer(session: u32, keys: SessionKeys) -> Self {
        Channel::new(session, keys.from_viewer, keys.from_sender)
    }

    pub(super) fn of_sender(session: u32, keys: SessionKeys) -> Self {
        Channel::new(session, keys.from_sender, keys.from_viewer)
    }

    fn new(session: u32, sealing: AeadKey, opening: AeadKey) -> Self {
        Channel {
            session,
            sealing,
            opening,
            next: 0,
            window: ReplayWindow::default(),
        }
    }

    pub(super) fn seal(&mut self, kind: Kind, plaintext: Vec<u8>) -> Result<Vec<u8>, UsedUp> {
        self.seal_with(kind, None, plaintext)
    }

    pub(super) fn seal_with(
        &mut self,
        kind: Kind,
        randoms: Option<[[u8; 16]; 2]>,
        plaintext: Vec<u8>,
    ) -> Result<Vec<u8>, UsedUp> {
        // The last message of a key is kept for the goodbye.
        let kept = u64::from(kind != Kind::Goodbye);
        if self.next + kept >= PACKETS_PER_KEY {
            return Err(UsedUp);
        }
        let message = Sealed {
            kind,
            session: self.session,
            number: self.next,
            randoms,
            ciphertext: &[],
        };
        let clear = message.clear();
        let mut sealed = plaintext;
        self.sealing.seal(nonce(self.next), &clear, &mut sealed);
        self.next += 1;
        sealed.splice(..0, clear);
        Ok(sealed)
    }

    /// Returns the plaintext of a message that did not arrive before.
    pub(super) fn open(&mut self, message: &Sealed<'_>) -> Result<Vec<u8>, OpenError> {
        if message.session != self.session {
            return Err(OpenError::Forged);
        }
        if !self.window.is_new(message.number) {
            return Err(OpenError::Replayed);
        }
        let nonce = nonce(message.number);
        let plaintext = self
            .opening
            .open(nonce, &message.clear(), message.ciphertext)
            .map_err(|_| OpenError::Forged)?;
        self.window.accept(message.number);
        Ok(plaintext)
    }
}

impl ReplayWindow {
    fn is_new(&self, number: u64) -> bool {
        match self.newest.checked_sub(number) {
            None => true,
            Some(below) => below < WINDOW && self.accepted & 1 << below == 0,
        }
    }

    fn accept(&mut self, number: u64) {
        if let Some(ahead) = number.checked_sub(self.newest) {
            let moved = u32::try_from(ahead)
                .ok()
                .and_then(|n| self.accepted.checked_shl(n));
            self.accepted = moved.unwrap_or(0) | 1;
            self.newest = number;
        } else {
            self.accepted |= 1 << (self.newest - number);
        }
    }
}

fn nonce(number: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce
}

#[cfg(test)]
impl Channel {
    /// Leaves the key one message, besides the goodbye.
    pub(super) fn use_up(&mut self) {
        self.next = PACKETS_PER_KEY - 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::TrackSecret;
    use hawser_packets::golden::{self, MessageVector};
    use hawser_packets::session::Message;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ends() -> (Channel, Channel) {
        let keys = || TrackSecret::new([1; 32]).access().session(&[[2; 16]; 2]);
        (Channel::of_viewer(7, keys()), Channel::of_sender(7, keys()))
    }

    fn opened(end: &mut Channel, datagram: &[u8]) -> Result<Vec<u8>, OpenError> {
        match Message::parse(datagram) {
            Ok(Message::Sealed(sealed)) => end.open(&sealed),
            _ => Err(OpenError::Forged),
        }
    }

    /// Checks that both ends agree with a message of the other implementation.
    fn check<T>(vector: MessageVector<T>) {
        let access = TrackSecret::new(vector.secret).access();
        let keys = || access.session(&vector.randoms);
        let mut viewer = Channel::of_viewer(vector.session, keys());
        let mut sender = Channel::of_sender(vector.session, keys());
        let (from, to) = match vector.kind {
            Kind::Accept | Kind::Status => (&mut sender, &mut viewer),
            _ => (&mut viewer, &mut sender),
        };
        from.next = vector.number;
        let randoms = (vector.kind == Kind::Accept).then_some(vector.randoms);
        let plaintext = vector.plaintext.clone();
        let sealed = from.seal_with(vector.kind, randoms, plaintext).unwrap();
        assert_eq!(hex::encode(sealed), hex::encode(&vector.datagram));
        assert_eq!(opened(to, &vector.datagram), Ok(vector.plaintext));
    }

    #[test]
    fn messages_are_those_of_the_other_implementation() {
        check(golden::accept());
        check(golden::subscribe());
        check(golden::report());
        check(golden::status());
    }

    #[test]
    fn no_bit_of_a_message_can_be_changed_and_none_is_opened_twice() {
        let (mut viewer, mut sender) = ends();
        let sealed = viewer.seal(Kind::Goodbye, vec![0]).unwrap();
        for bit in 0..sealed.len() * 8 {
            let mut forged = sealed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                opened(&mut sender, &forged),
                Err(OpenError::Forged),
                "bit {bit}"
            );
        }
        assert_eq!(
            opened(&mut viewer, &sealed),
            Err(OpenError::Forged),
            "reflected"
        );
        assert_eq!(opened(&mut sender, &sealed), Ok(vec![0]));
        assert_eq!(opened(&mut sender, &sealed), Err(OpenError::Replayed));
    }

    #[test]
    fn a_key_seals_no_more_messages_than_it_may() {
        let (mut viewer, _) = ends();
        viewer.use_up();
        assert!(viewer.seal(Kind::Feedback, vec![0]).is_ok());
        let left = viewer.seal(Kind::Feedback, vec![0]);
        assert_eq!(left, Err(UsedUp), "the last one is kept for the goodbye");
        assert!(viewer.seal(Kind::Goodbye, vec![0]).is_ok());
        assert_eq!(viewer.seal(Kind::Goodbye, vec![0]), Err(UsedUp));
    }

    proptest! {
        #[test]
        fn no_number_is_accepted_twice(
            start in prop_oneof![0..200u64, any::<u64>()],
            steps in proptest::collection::vec(prop_oneof![8 => -80..8i64, 1 => -200..200i64], 1..300),
        ) {
            let mut newest = start;
            let numbers = steps.into_iter().map(|step| {
                let number = newest.saturating_add_signed(step);
                newest = newest.max(number);
                number
            });
            let mut window = ReplayWindow::default();
            let mut accepted = BTreeSet::new();
            for number in numbers {
                let newest = accepted.last().copied();
                if window.is_new(number) {
                    window.accept(number);
                    prop_assert!(accepted.insert(number));
                } else {
                    let is_too_old = newest.is_some_and(|newest| newest - number >= WINDOW);
                    prop_assert!(is_too_old || accepted.contains(&number));
                }
            }
        }
    }
}

use crate::{ATTEMPTS, LATE_EPOCHS, SLOT_BITS, SLOTS, Verdict, Window, epoch_of};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The number of bits of a send time.
const SENT_BITS: u32 = 48;

/// A send time is recorded if it is newer than the last recorded one by this, in microseconds.
const NEWER_BY: i64 = 1_000;

/// The maximum clock drift: one part in 2^10.
const DRIFT_SHIFT: u32 = 10;

/// A number that exceeds that of the newest packet by more than this starts a session.
const SESSION_APART: i64 = LATE_EPOCHS as i64 * SLOTS as i64 * SLOT_BITS as i64;

/// The times of a tagged packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The sender's clock in microseconds, of which 48 bits are used.
    pub sent_micros: u64,
    /// The receiver's clock in microseconds since any origin in the past.
    pub now_micros: u64,
    /// The maximum delay of a packet above that of the fastest one, in microseconds.
    pub max_age_micros: u32,
}

/// The age of a packet, from its send time.
#[derive(Clone, Copy)]
struct Age {
    /// The newest send time before this packet.
    newest_sent: u64,
    /// The difference of this packet's send time to that, in microseconds.
    ahead: i64,
    /// The delay above that of the fastest packet, in microseconds.
    late: i64,
    /// Whether there was a packet before.
    known: bool,
    /// Whether it took too long and does not start a session.
    expired: bool,
}

impl Window {
    /// Judges a tagged packet and records its number. The tag proves that the sender's sessions
    /// start at ever higher numbers and that its clock never goes back. May be called from several
    /// threads concurrently.
    ///
    /// A packet that is older than its slot was accepted before, or could have been. A packet that
    /// was sent too long ago is accepted only as the start of a session.
    pub fn observe_tagged(&self, sequence: u64, times: Times) -> Verdict {
        let slot = &self.slots[(sequence / SLOT_BITS) as usize % SLOTS];
        let age = self.age_of(sequence, times);
        let mut seen = slot.load(Relaxed);
        for _ in 0..ATTEMPTS {
            let (verdict, next) = judge(seen, sequence);
            if verdict == Verdict::Outdated {
                return verdict;
            }
            if age.expired {
                return Verdict::Expired;
            }
            let Some(next) = next else { return verdict };
            match slot.compare_exchange(seen, next, Relaxed, Relaxed) {
                Ok(_) => {
                    self.note_newest(age, sequence, times);
                    return verdict;
                }
                Err(changed) => seen = changed,
            }
        }
        Verdict::Contended
    }

    /// Returns the age of a packet. The newest send time is read first and written last, so that a
    /// concurrent update makes the packet younger, not older.
    fn age_of(&self, sequence: u64, times: Times) -> Age {
        let newest_sent = self.newest_sent.load(SeqCst);
        let expected = self.expected.load(SeqCst);
        let unused = 64 - SENT_BITS;
        let ahead = (times.sent_micros.wrapping_sub(newest_sent) << unused) as i64 >> unused;
        let late = (times.now_micros.wrapping_sub(expected) as i64).wrapping_sub(ahead);
        // After a pause of the sender's clock, packets seem to take longer by the length of the
        // pause. They pass again once the clock has advanced by that much; until then, packets that
        // were held back are refused.
        let limit = ahead.max(times.max_age_micros.into());
        let known = expected != 0;
        let further = sequence.wrapping_sub(self.newest_sequence.load(SeqCst)) as i64;
        let begins = ahead > 0 && further > SESSION_APART;
        Age {
            newest_sent,
            ahead,
            late,
            known,
            expired: known && late > limit && !begins,
        }
    }

    /// Records when the fastest packets arrive. A slower packet changes that by the clock drift at
    /// most, unless it was accepted in spite of its age.
    fn note_newest(&self, age: Age, sequence: u64, times: Times) {
        if age.known && age.ahead < NEWER_BY {
            return;
        }
        let late = age.late - (age.ahead >> DRIFT_SHIFT);
        let restarts = !age.known || age.late > times.max_age_micros.into();
        let late = if restarts { 0 } else { late.max(0) };
        self.newest_sequence.store(sequence, SeqCst);
        self.expected
            .store(times.now_micros.wrapping_sub(late as u64), SeqCst);
        // On failure, another thread has recorded an equally good one.
        let _ =
            self.newest_sent
                .compare_exchange(age.newest_sent, times.sent_micros, SeqCst, SeqCst);
    }
}

/// Judges as for untagged packets, except that nothing replaces a newer epoch, whatever the
/// distance.
fn judge(slot: u64, sequence: u64) -> (Verdict, Option<u64>) {
    let newer = ((slot >> 32) as u32).wrapping_sub(epoch_of(sequence)) as i32;
    let is_empty = slot as u32 == 0;
    if newer > 0 && !is_empty {
        (Verdict::Outdated, None)
    } else {
        crate::judge(slot, sequence)
    }
}

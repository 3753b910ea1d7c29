use crate::{ATTEMPTS, LATE_EPOCHS, SLOT_BITS, SLOTS, Verdict, Window, epoch_of};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Bits of a send time.
const SENT_BITS: u32 = 48;

/// A send time is noted when it is newer than the one before by this, microseconds.
const NEWER_BY: i64 = 1_000;

/// Clocks may run apart by one part in 2^10.
const DRIFT_SHIFT: u32 = 10;

/// A number that is this much greater than that of the newest packet begins a session.
const SESSION_APART: i64 = LATE_EPOCHS as i64 * SLOTS as i64 * SLOT_BITS as i64;

/// When a tagged packet was sent and came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The sender's clock, microseconds; of it, 48 bits.
    pub sent_micros: u64,
    /// The receiver's clock, microseconds since some moment in the past.
    pub now_micros: u64,
    /// How much longer than the fastest a packet may take.
    pub max_age_micros: u32,
}

/// What a packet's send time says.
#[derive(Clone, Copy)]
struct Age {
    /// The newest send time of a packet before.
    newest_sent: u64,
    /// How much later than that this one was sent.
    ahead: i64,
    /// How much longer it took than the fastest.
    late: i64,
    /// There was a packet before.
    known: bool,
    /// It took too long, and does not begin a session.
    expired: bool,
}

impl Window {
    /// Judges a packet of a sender whose sessions start ever higher and whose clock never goes back, as its tag proves, and
    /// remembers its number. May be called from several threads at once.
    ///
    /// What is older than its slot was, or could have been, accepted before. What was sent too long ago is accepted only as
    /// the beginning of a session.
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

    /// The newest send time is read first and written last, so that an update in between makes a packet younger, not older.
    fn age_of(&self, sequence: u64, times: Times) -> Age {
        let newest_sent = self.newest_sent.load(SeqCst);
        let expected = self.expected.load(SeqCst);
        let unused = 64 - SENT_BITS;
        let ahead = (times.sent_micros.wrapping_sub(newest_sent) << unused) as i64 >> unused;
        let late = (times.now_micros.wrapping_sub(expected) as i64).wrapping_sub(ahead);
        // After a pause of the sender's clock packets seem to take as much longer. They pass again when the clock has gone on
        // for that long, and what was held back is refused for that long.
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

    /// Remembers when the fastest packets arrive. One that took longer changes that by no more than clocks run apart, unless
    /// it was accepted in spite of its age.
    fn note_newest(&self, age: Age, sequence: u64, times: Times) {
        if age.known && age.ahead < NEWER_BY {
            return;
        }
        let late = age.late - (age.ahead >> DRIFT_SHIFT);
        let is_to_start = !age.known || age.late > times.max_age_micros.into();
        let late = if is_to_start { 0 } else { late.max(0) };
        self.newest_sequence.store(sequence, SeqCst);
        self.expected
            .store(times.now_micros.wrapping_sub(late as u64), SeqCst);
        // Whoever was faster has noted one that is as good.
        let _ =
            self.newest_sent
                .compare_exchange(age.newest_sent, times.sent_micros, SeqCst, SeqCst);
    }
}

/// As for untagged packets, but that nothing takes the place of what is newer, however far apart they are.
fn judge(slot: u64, sequence: u64) -> (Verdict, Option<u64>) {
    let newer = ((slot >> 32) as u32).wrapping_sub(epoch_of(sequence)) as i32;
    let is_empty = slot as u32 == 0;
    if newer > 0 && !is_empty {
        (Verdict::Outdated, None)
    } else {
        crate::judge(slot, sequence)
    }
}

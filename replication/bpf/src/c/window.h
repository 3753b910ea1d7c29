/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The replay window. replication/dedup is its executable specification: change both or neither. */
#ifndef HAWSER_WINDOW_H
#define HAWSER_WINDOW_H

#include <stdbool.h>

#include "abi.h"

#define WINDOW_ATTEMPTS 8

#define SENT_SHIFT 16 /* send times have 48 bits */
#define NEWER_BY_US 1000 /* minimum advance of the recorded send time */
#define DRIFT_SHIFT 10 /* clocks may drift by one part in 1,024 */
#define SESSION_APART ((__s64)LATE_EPOCHS * WINDOW_SLOTS * WINDOW_SLOT_BITS) /* jump to a new session */

/* Judges a packet of an untagged flow. When in doubt, it is accepted. */
static __always_inline enum verdict observe(struct window *window, __u64 sequence)
{
	__u64 *slot = &window->slots[(sequence / WINDOW_SLOT_BITS) & (WINDOW_SLOTS - 1)];
	__u32 epoch = sequence / WINDOW_SLOT_BITS / WINDOW_SLOTS;
	__u64 bit = 1ULL << (sequence & (WINDOW_SLOT_BITS - 1));
	__u64 fresh = (__u64)epoch << 32 | bit;
	__u64 seen = *(volatile __u64 *)slot;

	for (int attempt = 0; attempt < WINDOW_ATTEMPTS; attempt++) {
		__s32 newer = (__u32)(seen >> 32) - epoch;
		enum verdict verdict = VERDICT_FIRST;
		__u64 next = fresh, found;

		if (!(__u32)seen) {
			verdict = VERDICT_RESET;
		} else if (newer == 0) {
			if (seen & bit)
				return VERDICT_DUPLICATE;
			next = seen | bit;
		} else if (newer > 0 && newer <= LATE_EPOCHS) {
			return VERDICT_LATE;
		} else if (newer > LATE_EPOCHS || newer < -LATE_EPOCHS) {
			verdict = VERDICT_RESET;
		}
		found = __sync_val_compare_and_swap(slot, seen, next);
		if (found == seen)
			return verdict;
		seen = found;
	}
	return VERDICT_CONTENDED;
}

/* The age of a tagged packet, derived from its send time. */
struct age {
	__u64 newest_sent_us; /* of an earlier packet */
	__s64 ahead_us;       /* send time after that of newest_sent_us */
	__s64 late_us;        /* delay in excess of the fastest packet */
	bool known;           /* there was an earlier packet */
	bool expired;          /* the delay is too long, and it does not begin a session */
};

/* `newest_sent_us` is read first and written last, so that a concurrent update makes a packet
 * younger, not older.
 */
static __always_inline struct age age_of(const struct window *window, __u64 sequence, __u64 sent_us, __u64 now_us,
					 __u64 max_age_us)
{
	struct age age = { .newest_sent_us = *(volatile __u64 *)&window->newest_sent_us };
	__u64 expected_us = *(volatile __u64 *)&window->expected_us;
	__s64 further = sequence - *(volatile __u64 *)&window->newest_sequence;
	__s64 limit_us = max_age_us;

	age.known = expected_us;
	age.ahead_us = (__s64)((sent_us - age.newest_sent_us) << SENT_SHIFT) >> SENT_SHIFT;
	age.late_us = (__s64)(now_us - expected_us) - age.ahead_us;
	/* After the sender's clock has paused, packets seem to take longer by the length of the
	 * pause. They are accepted again once the clock has advanced by that much; packets that
	 * were delayed in the meantime are rejected for as long.
	 */
	if (age.ahead_us > limit_us)
		limit_us = age.ahead_us;
	age.expired = age.known && age.late_us > limit_us && !(age.ahead_us > 0 && further > SESSION_APART);
	return age;
}

/* Records when the fastest packets arrive. A slower packet moves that time by no more than the
 * clock drift, unless it was accepted in spite of its age.
 */
static __always_inline void note_newest(struct window *window, const struct age *age, __u64 sequence, __u64 sent_us,
					__u64 now_us, __u64 max_age_us)
{
	__s64 late_us = age->late_us - (age->ahead_us >> DRIFT_SHIFT);

	if (age->known && age->ahead_us < NEWER_BY_US)
		return;
	if (!age->known || late_us < 0 || age->late_us > (__s64)max_age_us)
		late_us = 0;
	*(volatile __u64 *)&window->newest_sequence = sequence;
	__sync_lock_test_and_set(&window->expected_us, now_us - late_us);
	__sync_val_compare_and_swap(&window->newest_sent_us, age->newest_sent_us, sent_us);
}

/* Judges a packet of a tagged flow. Its sender's sessions start at ever higher numbers, so a packet
 * older than its slot was, or could have been, accepted before. A packet that was sent too long ago
 * is accepted only as the beginning of a session.
 */
static __always_inline enum verdict observe_tagged(struct window *window, __u64 sequence, __u64 sent_us, __u64 now_us,
						   __u64 max_age_us)
{
	__u64 *slot = &window->slots[(sequence / WINDOW_SLOT_BITS) & (WINDOW_SLOTS - 1)];
	__u32 epoch = sequence / WINDOW_SLOT_BITS / WINDOW_SLOTS;
	__u64 bit = 1ULL << (sequence & (WINDOW_SLOT_BITS - 1));
	__u64 fresh = (__u64)epoch << 32 | bit;
	struct age age = age_of(window, sequence, sent_us, now_us, max_age_us);
	__u64 seen = *(volatile __u64 *)slot;

	for (int attempt = 0; attempt < WINDOW_ATTEMPTS; attempt++) {
		__s32 newer = (__u32)(seen >> 32) - epoch;
		enum verdict verdict = VERDICT_FIRST;
		__u64 next = fresh, found;

		if (!(__u32)seen || newer < -LATE_EPOCHS)
			verdict = VERDICT_RESET;
		else if (newer > 0)
			return VERDICT_OUTDATED;
		if (age.expired)
			return VERDICT_EXPIRED;
		if (verdict == VERDICT_FIRST && newer == 0) {
			if (seen & bit)
				return VERDICT_DUPLICATE;
			next = seen | bit;
		}
		found = __sync_val_compare_and_swap(slot, seen, next);
		if (found == seen) {
			note_newest(window, &age, sequence, sent_us, now_us, max_age_us);
			return verdict;
		}
		seen = found;
	}
	return VERDICT_CONTENDED;
}

#endif

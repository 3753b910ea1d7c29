/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The elimination window. core/dedup is its executable specification: change both or neither. */
#ifndef HAWSER_WINDOW_H
#define HAWSER_WINDOW_H

#include "abi.h"

#define WINDOW_ATTEMPTS 8

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

#endif

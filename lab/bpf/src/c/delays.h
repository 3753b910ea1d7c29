/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Counts of delays, which user space maps. */
#ifndef HAWSER_DELAYS_H
#define HAWSER_DELAYS_H

#include "skb.h"

enum delay_limit {
	DELAY_STEPS = 64,        /* intervals of each power of two: a resolution of 1.6 % */
	DELAY_INTERVALS = 1728,  /* up to 2^32 ns */
	DELAY_CLASSES = 2,       /* of subscribers: all but one, and the one */
};
volatile const enum delay_limit delay_limit_type = 0;

/* Packets by the interval that their delay is in. */
struct delays {
	__u64 counts[DELAY_INTERVALS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct delays);
	__uint(max_entries, DELAY_CLASSES);
} delays SEC(".maps");

/* Returns the interval of a delay. */
static __always_inline __u32 interval_of(__u64 delay_ns)
{
	__u32 shift = 0, rest = delay_ns > 0xffffffff ? 0xffffffff : delay_ns;

	for (__u32 step = 16; step; step >>= 1) {
		if (rest >> step >= DELAY_STEPS) {
			rest >>= step;
			shift += step;
		}
	}
	return shift * DELAY_STEPS + rest;
}

/* Counts packets of a class of subscribers with a delay. */
static __always_inline void count_delay(__u32 class, __u64 delay_ns, __u32 packets)
{
	struct delays *row = bpf_map_lookup_elem(&delays, &class);
	__u32 interval = interval_of(delay_ns);

	if (row && interval < DELAY_INTERVALS)
		__sync_fetch_and_add(&row->counts[interval], packets);
}

#endif

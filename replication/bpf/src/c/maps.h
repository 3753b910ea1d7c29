/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Counters that all programs have. Maps of one direction are in its program. */
#ifndef HAWSER_MAPS_H
#define HAWSER_MAPS_H

#include <bpf/bpf_helpers.h>

#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, REASONS);
} reasons SEC(".maps");

/* BTF includes only types that a variable has: this makes the values visible to user space. */
volatile const enum reason reason_type = 0;

static __always_inline void count(enum reason reason)
{
	__u32 index = reason;
	__u64 *counter = bpf_map_lookup_elem(&reasons, &index);

	if (counter)
		(*counter)++;
}

#endif

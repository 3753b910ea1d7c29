/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Packets that are too large for some paths of their route: copies are sent on the other ones. */
#ifndef HAWSER_FITTING_H
#define HAWSER_FITTING_H

#include "sending.h"

/* Index: path. Copies that were not sent because they are larger than the path's MTU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, MAX_PATHS);
} tx_too_large SEC(".maps");

/* Returns those of `paths` that carry a packet of `bytes`. The verifier checks a global function once,
 * separately from its callers.
 */
__noinline __u32 fitting_paths(__u32 paths, __u32 bytes, __u32 is_transparent)
{
	__u32 fitting = 0;

	for (__u32 path = 0; path < MAX_PATHS; path++) {
		__u32 key = path;
		const struct tx_path *end;

		if (!(paths & (1 << path)))
			continue;
		end = bpf_map_lookup_elem(&tx_paths, &key);
		if (end && bytes <= (is_transparent ? end->mtu_bytes : end->inner_mtu_bytes))
			fitting |= 1 << path;
	}
	return fitting;
}

__noinline int count_too_large(__u32 paths)
{
	for (__u32 path = 0; path < MAX_PATHS; path++) {
		__u32 key = path;
		__u64 *counter;

		if (!(paths & (1 << path)))
			continue;
		counter = bpf_map_lookup_elem(&tx_too_large, &key);
		if (counter)
			(*counter)++;
	}
	return 0;
}

/* Leaves the paths of a route that carry the packet. Changes nothing if there are none: `obstacle` then
 * says so.
 */
static __always_inline void fit(const struct packet *packet, bool is_transparent, struct route *route)
{
	__u32 mtu_bytes = is_transparent ? route->path_mtu_bytes : route->inner_mtu_bytes;
	struct route narrowed;
	__u32 paths;

	if (likely(packet->bytes <= mtu_bytes))
		return;
	paths = fitting_paths(route->paths, packet->bytes, is_transparent);
	if (!paths || !read_route(paths, &narrowed))
		return;
	count_too_large(route->paths & ~paths);
	*route = narrowed;
}

#endif

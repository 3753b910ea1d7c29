/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Assigns a packet to a flow: by the longest destination prefix, then by the first rule that
 * matches.
 */
#ifndef HAWSER_SELECT_H
#define HAWSER_SELECT_H

#include "parse.h"

#include "maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct selector_key);
	__type(value, struct selector);
	__uint(max_entries, MAX_FLOWS);
} selectors SEC(".maps");

/* For user space, see maps.h. */
volatile const enum rule_flag rule_flag_type = 0;

static __always_inline bool ports_match(const struct rule *rule, const struct packet *packet)
{
	return packet->source_port >= rule->source_min && packet->source_port <= rule->source_max &&
	       packet->destination_port >= rule->destination_min && packet->destination_port <= rule->destination_max;
}

/* The flow and the flags of the rule that a packet matches. */
struct selected {
	__u16 flow;
	__u8 flags;
	bool is_missed; /* the packet is to the destination of flows or to a peer, and matches no rule */
};

/* Finds the flow of a packet; returns whether there is one. A fragment carries no ports, so it
 * matches only rules without ports. Packets that match only by their prefix are counted if `counts`,
 * and so are those whose protocol is hidden behind too many extension headers.
 */
static __always_inline bool select_packet(const struct packet *packet, bool counts, struct selected *selected)
{
	struct selector_key key = { .prefix_bits = 128 };
	struct selector *selector;
	bool skipped = false, hidden = false;

	selected->is_missed = false;
	__builtin_memcpy(key.address, packet->destination, sizeof(key.address));
	selector = bpf_map_lookup_elem(&selectors, &key);
	if (!selector || (selector->is_ipv6 && !packet->is_ipv6))
		return false;
	if (selector->left_alone) {
		if (counts)
			count(selector->left_alone);
		return false;
	}
	for (__u32 i = 0; i < MAX_RULES && i < selector->count; i++) {
		const struct rule *rule = &selector->rules[i];

		if (rule->protocol && rule->protocol != packet->protocol) {
			hidden |= packet->is_ipv6 && is_extension(packet->protocol);
			continue;
		}
		if (packet->is_fragment && rule->flags & RULE_PORTS) {
			skipped = true;
		} else if (!(rule->flags & RULE_PORTS) || ports_match(rule, packet)) {
			selected->flow = rule->flow;
			selected->flags = rule->flags;
			return true;
		}
	}
	if (skipped && counts)
		count(PASSED_FRAGMENT);
	else if (hidden && counts)
		count(PASSED_EXTENSIONS);
	else
		selected->is_missed = selector->count != 0 || selector->is_of_peer;
	return false;
}

/* Returns the flow that a packet belongs to, or -1. */
static __always_inline int select_flow(const struct packet *packet)
{
	struct selected selected;

	return select_packet(packet, true, &selected) ? selected.flow : -1;
}

#endif

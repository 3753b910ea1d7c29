/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Packets of this node that must not depend on the paths: management, name resolution, address
 * configuration and path measurements.
 */
#ifndef HAWSER_MANAGEMENT_H
#define HAWSER_MANAGEMENT_H

#include "sending.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct endpoint);
	__type(value, __u8);
	__uint(max_entries, 1024);
} own_endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct management);
	__uint(max_entries, 1);
} management SEC(".maps");

static __always_inline bool is_management_port(__u16 source_port)
{
	__u32 zero = 0;
	const struct management *own = bpf_map_lookup_elem(&management, &zero);

	for (__u32 i = 0; own && i < MANAGEMENT_PORTS; i++) {
		if (own->ports[i] && own->ports[i] == source_port)
			return true;
	}
	return false;
}

/* Returns whether nodes use the port for name resolution (53, 853) or address configuration (67, 68
 * over IPv4; 546, 547 over IPv6).
 */
static __always_inline bool is_service_port(__u8 protocol, __u16 port)
{
	switch (port) {
	case 53:
	case 853:
		return protocol == IPPROTO_UDP || protocol == IPPROTO_TCP;
	case 67:
	case 68:
	case 546:
	case 547:
		return protocol == IPPROTO_UDP;
	default:
		return false;
	}
}

/* Returns whether a packet of this node is management traffic, part of name resolution or address
 * configuration, or a path measurement: it must not depend on the paths and on the node at their
 * other end. A rule with source ports includes management ports; one with destination ports or a
 * narrow prefix includes name servers and DHCP. Not inlined, so that the verifier checks it once
 * instead of following each of its outcomes.
 */
__noinline int is_management(const struct endpoint *to, __u16 source_port, __u8 rule_flags)
{
	if (!to || !to->port)
		return false;
	if (to->protocol == IPPROTO_TCP && !(rule_flags & RULE_SOURCE_PORTS) && is_management_port(source_port))
		return true;
	if (!(rule_flags & RULE_SERVICES) && is_service_port(to->protocol, to->port))
		return true;
	/* Before Linux 6.4, a key must be in a map or on the stack. */
	struct endpoint key = *to;
	return bpf_map_lookup_elem(&own_endpoints, &key) != NULL;
}

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Packets that no router forwards, wherever they go. What goes to addresses that are not forwarded to is no matter of
 * this file: the selectors leave them out.
 */
#ifndef HAWSER_MARTIAN_H
#define HAWSER_MARTIAN_H

#include "parse.h"

#define ND_HOP_LIMIT 255 /* RFC 4861, section 7.1: it has passed no router */
#define ND_FIRST 133	 /* ICMPv6 types: router solicitation */
#define ND_LAST 137	 /* redirect */

/* Addresses that no packet comes from, or none that is forwarded (RFC 1812, section 5.3.7). */
static __always_inline __u8 martian_ipv4(const struct iphdr *ip)
{
	__u32 source = bpf_ntohl(ip->saddr);

	if (source >> 28 == 0xe || !source || source == 0xffffffff)
		return PASSED_NOT_UNICAST;
	if (source >> 24 == 127 || source >> 16 == 0xa9fe)
		return PASSED_LINK_LOCAL;
	return 0;
}

/* The same for IPv6 (RFC 4291, section 2.5), and neighbour discovery. */
static __always_inline __u8 martian_ipv6(const struct ipv6hdr *ip, const void *end)
{
	const __be32 *source = ip->saddr.in6_u.u6_addr32;
	const __u8 *type = (void *)(ip + 1);
	__u32 first = bpf_ntohl(source[0]);

	if (first >> 24 == 0xff)
		return PASSED_NOT_UNICAST;
	if (first >> 22 == 0xfe80 >> 6)
		return PASSED_LINK_LOCAL;
	if (!first && !source[1] && !source[2] && bpf_ntohl(source[3]) <= 1)
		return source[3] ? PASSED_LINK_LOCAL : PASSED_NOT_UNICAST;
	if (ip->nexthdr == IPPROTO_ICMPV6 && ip->hop_limit == ND_HOP_LIMIT && (void *)(type + 1) <= end &&
	    *type >= ND_FIRST && *type <= ND_LAST)
		return PASSED_LINK_LOCAL;
	return 0;
}

/* Why a packet is one of them, an enum reason; 0 when it is none. */
static __always_inline __u8 martian(const struct packet *packet, const void *end)
{
	return packet->is_ipv6 ? martian_ipv6(packet->header, end) : martian_ipv4(packet->header);
}

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Packets that no router forwards because of their source or type. Destinations that are not
 * forwarded to are excluded by the selectors, not here.
 */
#ifndef HAWSER_MARTIAN_H
#define HAWSER_MARTIAN_H

#include "parse.h"

#define ND_HOP_LIMIT 255 /* RFC 4861, section 7.1: no router has forwarded it */
#define ND_FIRST 133	 /* ICMPv6 types: router solicitation */
#define ND_LAST 137	 /* redirect */

/* Source addresses that are invalid or not forwarded (RFC 1812, section 5.3.7). */
static __always_inline __u8 martian_ipv4(const struct iphdr *ip)
{
	__u32 source = bpf_ntohl(ip->saddr);

	if (source >> 28 == 0xe || !source || source == 0xffffffff)
		return PASSED_NOT_UNICAST;
	if (source >> 24 == 127 || source >> 16 == 0xa9fe)
		return PASSED_LINK_LOCAL;
	return 0;
}

/* As martian_ipv4, for IPv6 (RFC 4291, section 2.5) and neighbour discovery. */
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

/* Returns why a packet is not forwarded, an enum reason; 0 if it is. */
static __always_inline __u8 martian(const struct packet *packet, const void *end)
{
	/* The type of a message behind extension headers is not known here. */
	if (packet->is_ipv6 && packet->protocol == IPPROTO_ICMPV6 && packet->ttl == ND_HOP_LIMIT &&
	    ((const struct ipv6hdr *)packet->header)->nexthdr != IPPROTO_ICMPV6)
		return PASSED_LINK_LOCAL;
	return packet->is_ipv6 ? martian_ipv6(packet->header, end) : martian_ipv4(packet->header);
}

#endif

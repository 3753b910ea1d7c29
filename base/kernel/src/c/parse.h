/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* A cursor over a frame: each step checks the bounds, advances, and returns the header or NULL. */
#ifndef HAWSER_PARSE_H
#define HAWSER_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
#define IP_MF_OR_OFFSET 0x3fff
#define IP_OFFSET 0x1fff
#define IP_DF 0x4000
#define ECN_MASK 0x3
#define ECN_CE 0x3

/* A pointer into a packet, possibly unaligned. The compiler may still read whole words, since these
 * machines support it.
 */
#define WORDS(pointer) __builtin_assume_aligned(pointer, 8)
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian machine must swap the words");

struct cursor {
	void *at;
	void *end;
};

static __always_inline void *take(struct cursor *cursor, __u32 bytes)
{
	void *header = cursor->at;

	if (header + bytes > cursor->end)
		return NULL;
	cursor->at = header + bytes;
	return header;
}

static __always_inline bool is_vlan(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

static __always_inline __u32 remaining(const struct cursor *cursor)
{
	__u64 bytes = cursor->end - cursor->at;

	barrier_var(bytes); /* keeps the pointer subtraction before the conversion to a number */
	return bytes;
}

/* The fields that select a packet, and those that headers in front of it copy. */
struct packet {
	const void *header;
	__u8 destination[16]; /* IPv4 mapped */
	__u32 bytes;          /* from the IP header to the packet's end, by its own length field */
	__u32 padding_bytes;  /* after that end: Ethernet pads short frames */
	__u16 source_port, destination_port; /* host byte order; 0 if there are none */
	__u8 protocol;
	__u8 traffic_class;
	__u8 ttl;
	bool is_ipv6;
	bool is_fragment;
};

/* Returns whether a header of IPv6 says which one follows it, and where (RFC 8200, section 4; RFC 4302). */
static __always_inline bool is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_DSTOPTS ||
	       protocol == IPPROTO_FRAGMENT || protocol == IPPROTO_AH;
}

enum parsed { PARSED, NOT_IP, MALFORMED, VLAN };

static __always_inline void parse_ports(struct cursor *cursor, struct packet *packet)
{
	__be16 *ports;

	packet->source_port = 0;
	packet->destination_port = 0;
	if (packet->is_fragment)
		return;
	if (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP)
		return;
	ports = take(cursor, 4);
	if (!ports)
		return;
	packet->source_port = bpf_ntohs(ports[0]);
	packet->destination_port = bpf_ntohs(ports[1]);
}

/* Parses the IP packet of the given `protocol`, of which `available_bytes` are present. The cursor
 * is at the IP header.
 */
static __always_inline enum parsed parse_ip(struct cursor *cursor, __be16 protocol, __u32 available_bytes,
					    struct packet *packet)
{
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = take(cursor, sizeof(*ip));
		__u32 header_bytes;

		if (!ip || ip->version != 4)
			return MALFORMED;
		header_bytes = ip->ihl * 4;
		if (header_bytes < sizeof(*ip) || !take(cursor, header_bytes - sizeof(*ip)))
			return MALFORMED;
		packet->header = ip;
		packet->bytes = bpf_ntohs(ip->tot_len);
		if (packet->bytes < header_bytes)
			return MALFORMED;
		__builtin_memset(packet->destination, 0, 10);
		__builtin_memset(packet->destination + 10, 0xff, 2);
		__builtin_memcpy(packet->destination + 12, &ip->daddr, 4);
		packet->protocol = ip->protocol;
		packet->traffic_class = ip->tos;
		packet->ttl = ip->ttl;
		packet->is_ipv6 = false;
		packet->is_fragment = ip->frag_off & bpf_htons(IP_MF_OR_OFFSET);
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = take(cursor, sizeof(*ip));

		if (!ip || ip->version != 6)
			return MALFORMED;
		if (!ip->payload_len) /* a jumbogram (RFC 2675), or no payload */
			return MALFORMED;
		packet->header = ip;
		packet->bytes = sizeof(*ip) + bpf_ntohs(ip->payload_len);
		__builtin_memcpy(packet->destination, &ip->daddr, 16);
		packet->protocol = ip->nexthdr;
		packet->traffic_class = ip->priority << 4 | ip->flow_lbl[0] >> 4;
		packet->ttl = ip->hop_limit;
		packet->is_ipv6 = true;
		packet->is_fragment = ip->nexthdr == IPPROTO_FRAGMENT;
		if (packet->is_fragment) {
			__u8 *fragment = take(cursor, 8);

			if (!fragment)
				return MALFORMED;
			packet->protocol = fragment[0];
		}
	} else {
		return is_vlan(protocol) ? VLAN : NOT_IP;
	}
	if (available_bytes < packet->bytes)
		return MALFORMED;
	packet->padding_bytes = available_bytes - packet->bytes;
	parse_ports(cursor, packet);
	return PARSED;
}

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Checksums that a sender has left to its device: those of a veth or TAP device never completes them.
 * The field then holds the sum of the pseudo header. XDP does not see whether that is so, but a
 * complete checksum that happens to have this value stays the same when it is computed again.
 */
#ifndef HAWSER_PARTIAL_H
#define HAWSER_PARTIAL_H

#include "sum.h"

#define PARTIAL_OFFSET_MAX 128

/* Returns whether the TCP or UDP checksum of a packet is the sum of its pseudo header. Packets with
 * IPv4 options or IPv6 extension headers are not recognised.
 */
static __always_inline bool is_partial(const struct packet *packet, const void *end)
{
	__u64 pseudo = bpf_htons(packet->protocol);
	const void *transport;
	const __u16 *check;

	if (packet->is_fragment || (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP))
		return false;
	if (packet->is_ipv6) {
		const struct ipv6hdr *ip = packet->header;

		if ((void *)(ip + 1) > end || ip->nexthdr != packet->protocol)
			return false;
		pseudo = sum_words(pseudo + ip->payload_len, WORDS(&ip->saddr), 2 * sizeof(ip->saddr) / 4);
		transport = ip + 1;
	} else {
		const struct iphdr *ip = packet->header;

		if ((void *)(ip + 1) > end || ip->ihl * 4 != sizeof(*ip))
			return false;
		pseudo += (__u64)ip->saddr + ip->daddr + bpf_htons(packet->bytes - sizeof(*ip));
		transport = ip + 1;
	}
	check = transport + (packet->protocol == IPPROTO_TCP ? TCP_CHECK_OFFSET : UDP_CHECK_OFFSET);
	return (void *)(check + 1) <= end && *check == fold(pseudo);
}

/* Completes the checksum of the packet at `offset`, which ends with the frame. The verifier checks a
 * global function once, separately from its callers.
 */
__noinline int complete_checksum(struct xdp_md *ctx, __u32 offset, bool is_ipv6, __u32 protocol)
{
	void *at = (void *)(long)ctx->data;
	__u16 *check, sum;

	if (offset > PARTIAL_OFFSET_MAX)
		return 0;
	offset += is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	check = at + offset + (protocol == IPPROTO_TCP ? TCP_CHECK_OFFSET : UDP_CHECK_OFFSET);
	if ((void *)(check + 1) > (void *)(long)ctx->data_end)
		return 0;
	sum = ~sum_from(ctx, offset);
	*check = sum || protocol == IPPROTO_TCP ? sum : 0xffff;
	return 1;
}

#endif

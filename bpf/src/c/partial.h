/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Checksums that a sender has left to its device: those of a veth or TAP device never completes them.
 * The field then holds the sum of the pseudo header. XDP does not see whether that is so, but a
 * complete checksum that happens to have this value stays the same when it is computed again.
 */
#ifndef HAWSER_PARTIAL_H
#define HAWSER_PARTIAL_H

#include "sum.h"

#define TCP_CHECK_OFFSET 16
#define UDP_CHECK_OFFSET 6
#define PARTIAL_OFFSET_MAX 128

/* Completes the checksum of the TCP or UDP packet at `offset`, which ends with the frame, unless it is
 * complete. The packet has no IPv4 options and no IPv6 extension headers; others stay as they are. The
 * verifier checks a global function once, separately from its callers.
 */
__noinline int complete_checksum(struct xdp_md *ctx, __u32 offset, __u32 protocol)
{
	void *end = (void *)(long)ctx->data_end, *at = (void *)(long)ctx->data, *transport;
	__u32 check_offset = protocol == IPPROTO_TCP ? TCP_CHECK_OFFSET : UDP_CHECK_OFFSET;
	__u64 pseudo = bpf_htons(protocol);
	__u16 *check, sum;

	if (offset > PARTIAL_OFFSET_MAX || (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP))
		return 0;
	at += offset;
	if (at + sizeof(struct iphdr) > end)
		return 0;
	if (*(__u8 *)at >> 4 == 6) {
		struct ipv6hdr *ip = at;

		if ((void *)(ip + 1) > end || ip->nexthdr != protocol)
			return 0;
		pseudo = sum_words(pseudo + ip->payload_len, WORDS(&ip->saddr), 2 * sizeof(ip->saddr) / 4);
		transport = ip + 1;
	} else {
		struct iphdr *ip = at;

		if (ip->ihl * 4 != sizeof(*ip))
			return 0;
		pseudo += (__u64)ip->saddr + ip->daddr + bpf_htons(bpf_ntohs(ip->tot_len) - sizeof(*ip));
		transport = ip + 1;
	}
	check = transport + check_offset;
	if ((void *)(check + 1) > end || *check != fold(pseudo))
		return 0;
	sum = ~sum_from(ctx, transport - (void *)(long)ctx->data);
	*check = sum || protocol == IPPROTO_TCP ? sum : 0xffff;
	return 1;
}

#endif

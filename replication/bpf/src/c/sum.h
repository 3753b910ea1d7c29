/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The sum of a packet, in a program whose context is CONTEXT. */
#ifndef HAWSER_SUM_H
#define HAWSER_SUM_H

#include "checksum.h"

#ifndef CONTEXT
#define CONTEXT struct xdp_md
#endif

#define SUM_OFFSET_MAX 256

/* Returns the folded sum of the frame from `offset` on; zero if the frame ends before. The verifier
 * checks a global function once, separately from its callers.
 */
__noinline __u32 sum_from(CONTEXT *ctx, __u32 offset)
{
	if (offset > SUM_OFFSET_MAX)
		return 0;
	return fold(sum_bytes(0, (void *)(long)ctx->data + offset, (void *)(long)ctx->data_end));
}

#define TCP_CHECK_OFFSET 16
#define UDP_CHECK_OFFSET 6

/* Returns whether the TCP segment or UDP datagram of `bytes` at `at` has a checksum that covers exactly
 * these bytes.
 */
static __always_inline bool has_checksum(const void *at, const void *end, __u8 protocol, __be16 bytes_be)
{
	const struct udphdr *udp = at;

	if (protocol == IPPROTO_TCP)
		return at + TCP_CHECK_OFFSET + 2 <= end;
	return protocol == IPPROTO_UDP && (void *)(udp + 1) <= end && udp->check && udp->len == bytes_be;
}

/* Returns the folded sum of the IP packet at `offset`, which ends with the frame; zero if that is cut
 * off. The sum of a TCP or UDP packet is known from its first bytes: its payload and the pseudo header
 * have the sum 0xffff if the checksum is correct, and the addresses are in both headers. As with the
 * local checksum offload of Linux, an incorrect checksum makes the one outside incorrect by as much.
 */
__noinline __u32 sum_of_packet(CONTEXT *ctx, __u32 offset)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip;

	if (offset > SUM_OFFSET_MAX)
		return 0;
	at += offset;
	ip = at;
	if ((void *)(ip + 1) > end)
		return 0;
	if (ip->version == 6) {
		struct ipv6hdr *ip6 = at;

		if ((void *)(ip6 + 1) <= end && has_checksum(ip6 + 1, end, ip6->nexthdr, ip6->payload_len))
			return fold(sum_words(0, WORDS(at), 2) + (__u16)~fold((__u64)bpf_htons(ip6->nexthdr) + ip6->payload_len));
	} else if (ip->ihl == 5 && !(ip->frag_off & bpf_htons(IP_MF_OR_OFFSET))) {
		__be16 bytes_be = bpf_htons(bpf_ntohs(ip->tot_len) - sizeof(*ip));

		if (has_checksum(ip + 1, end, ip->protocol, bytes_be))
			return fold(sum_words(0, WORDS(at), 3) + (__u16)~fold((__u64)bpf_htons(ip->protocol) + bytes_be));
	}
	return sum_from(ctx, offset);
}

#endif

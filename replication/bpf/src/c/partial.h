/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Checksums that a sender has left to its device: those of a veth or TAP device never completes them.
 * The field then holds the sum of the pseudo header. XDP does not see whether that is so, but a
 * complete checksum that happens to have this value stays the same when it is computed again.
 *
 * The checksum may be that of a packet in the packet: in VXLAN, Geneve, GRE, IP or any other
 * encapsulation. An inner packet is recognised by its IP header, whose length reaches to the end of the
 * frame, whatever is in front of it.
 */
#ifndef HAWSER_PARTIAL_H
#define HAWSER_PARTIAL_H

#include "extensions.h"
#include "sum.h"

#define PARTIAL_OFFSET_MAX SUM_OFFSET_MAX
#define ENCAPSULATIONS_MAX 4
/* The largest number of bytes from the end of an IP header to an IP header inside. */
#define ENCAPSULATION_BYTES_MAX 64

/* Not in linux/in.h, or not before Linux 6.0. */
#define PROTOCOL_ETHERIP 97
#define PROTOCOL_L2TP 115

/* What an IP packet carries, up to the end of the frame. */
struct carried {
	__u32 offset;
	__u32 protocol;
	__u64 pseudo; /* the sum of the pseudo header */
};

/* Returns whether the IP packet at `offset` is no fragment and ends with the frame, and where its payload
 * begins. The verifier checks a global function once, separately from its callers.
 */
__noinline int open_carried(struct xdp_md *ctx, __u32 offset, struct carried *carried)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct transport transport = {};
	__u64 bytes;
	struct iphdr *ip;

	if (!carried || offset > PARTIAL_OFFSET_MAX)
		return 0;
	at += offset;
	ip = at;
	if ((void *)(ip + 1) > end)
		return 0;
	bytes = end - at;
	barrier_var(bytes);
	if (ip->version == 4) {
		__u32 header_bytes = ip->ihl * 4;

		if (header_bytes < sizeof(*ip) || bpf_ntohs(ip->tot_len) != bytes || header_bytes > bytes ||
		    ip->frag_off & bpf_htons(IP_MF_OR_OFFSET))
			return 0;
		carried->offset = offset + header_bytes;
		carried->protocol = ip->protocol;
		carried->pseudo = (__u64)ip->saddr + ip->daddr + bpf_htons(bytes - header_bytes);
	} else {
		struct ipv6hdr *ip6 = at;

		if ((void *)(ip6 + 1) > end || ip6->version != 6 || bpf_ntohs(ip6->payload_len) + sizeof(*ip6) != bytes)
			return 0;
		carried->pseudo = sum_words(0, WORDS(&ip6->saddr), 2 * sizeof(ip6->saddr) / 4);
		transport.offset = offset + sizeof(*ip6);
		transport.protocol = ip6->nexthdr;
		if (is_extension(transport.protocol))
			skip_extensions(ctx, &transport);
		bytes += offset;
		if (transport.is_fragment || is_extension(transport.protocol) || transport.offset > bytes)
			return 0;
		carried->offset = transport.offset;
		carried->protocol = transport.protocol;
		carried->pseudo += bpf_htons(bytes - transport.offset);
	}
	carried->pseudo += bpf_htons(carried->protocol);
	return 1;
}

/* Returns the offset of the first IP header at or after `offset` that looks complete and whose length
 * reaches to the end of the frame; 0 if there is none near.
 */
__noinline __u32 find_inner(struct xdp_md *ctx, __u32 offset)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	for (__u32 skipped = 0; skipped <= ENCAPSULATION_BYTES_MAX; skipped += 2) {
		__u32 here = offset + skipped;
		struct iphdr *ip;
		__u64 bytes;

		barrier_var(here); /* keeps the verifier's bound on what is added to the pointer */
		if (here > PARTIAL_OFFSET_MAX)
			return 0;
		ip = data + here;
		if ((void *)(ip + 1) > end)
			return 0;
		bytes = end - (void *)ip;
		barrier_var(bytes);
		if (ip->version == 4 && bpf_ntohs(ip->tot_len) == bytes &&
		    (ip->ihl > 5 || (ip->ihl == 5 && fold(sum_words(0, WORDS(ip), sizeof(*ip) / 4)) == 0xffff)))
			return here;
		/* The payload's length of IPv6 is where the identification of IPv4 is. */
		if (ip->version == 6 && bpf_ntohs(ip->id) + sizeof(struct ipv6hdr) == bytes)
			return here;
	}
	return 0;
}

static __always_inline bool is_encapsulation(__u32 protocol)
{
	switch (protocol) {
	case IPPROTO_UDP:
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
	case IPPROTO_GRE:
	case PROTOCOL_ETHERIP:
	case PROTOCOL_L2TP:
	case IPPROTO_MPLS:
		return true;
	default:
		return false;
	}
}

/* Completes the checksum of the TCP segment or UDP datagram, which ends with the frame, if it is the sum of
 * its pseudo header.
 */
__noinline int complete_checksum(struct xdp_md *ctx, const struct carried *carried)
{
	void *at = (void *)(long)ctx->data;
	__u32 offset;
	__u16 *check, sum;

	if (!carried)
		return 0;
	offset = carried->offset;
	if (offset > PARTIAL_OFFSET_MAX || (carried->protocol != IPPROTO_TCP && carried->protocol != IPPROTO_UDP))
		return 0;
	check = at + offset + (carried->protocol == IPPROTO_TCP ? TCP_CHECK_OFFSET : UDP_CHECK_OFFSET);
	if ((void *)(check + 1) > (void *)(long)ctx->data_end || *check != fold(carried->pseudo))
		return 0;
	sum = ~sum_from(ctx, offset);
	*check = sum || carried->protocol == IPPROTO_TCP ? sum : 0xffff;
	return 1;
}

/* Completes the checksum that was left to the device, in the IP packet at `offset` or in one inside it. A
 * packet has one at most.
 */
static __always_inline void complete_partial(struct xdp_md *ctx, __u32 offset)
{
	struct carried carried = {};

	for (int level = 0; level < ENCAPSULATIONS_MAX; level++) {
		if (!open_carried(ctx, offset, &carried) || complete_checksum(ctx, &carried) ||
		    !is_encapsulation(carried.protocol))
			return;
		offset = find_inner(ctx, carried.offset + (carried.protocol == IPPROTO_UDP ? sizeof(struct udphdr) : 0));
		if (!offset)
			return;
	}
}

#endif

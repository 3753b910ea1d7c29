/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* A packet that has arrived: in XDP with its Ethernet header, and at TC with or without one. Devices
 * whose packets have none are LTE modems, WireGuard, PPP and TUN. Generic XDP cannot change the length of
 * such packets: it takes the bytes that change for an Ethernet header.
 */
#ifndef HAWSER_ARRIVED_H
#define HAWSER_ARRIVED_H

#include <asm-generic/errno.h>

#include "abi.h"
#include "foreign.h"
#include "parse.h"
#include "skb.h"

#ifdef AT_TC

#define CONTEXT struct __sk_buff

/* Since Linux 6.3, in linux/bpf.h. */
#define ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)

/* Returns the packet at its IP header, which is after `link_bytes`. A train of segments is not copied into
 * one piece: it is not one replica, and its lengths say so.
 */
static __always_inline bool open_arrived(struct __sk_buff *skb, __u32 link_bytes, struct cursor *cursor,
					 __be16 *protocol)
{
	*cursor = (struct cursor){ (void *)(long)skb->data, (void *)(long)skb->data_end };
	if (remaining(cursor) < skb->len && !skb->gso_size) {
		bpf_skb_pull_data(skb, skb->len);
		*cursor = (struct cursor){ (void *)(long)skb->data, (void *)(long)skb->data_end };
	}
	/* The kernel has taken the tag out of the frame. */
	*protocol = skb->vlan_present ? bpf_htons(ETH_P_8021Q) : skb->protocol;
	return take(cursor, link_bytes) != NULL;
}

/* Returns whether the kernel takes the packet. */
static __always_inline bool is_for_node(struct __sk_buff *skb)
{
	return skb->pkt_type == PACKET_HOST;
}

/* Removes the outer headers. Returns REASONS, or why the kernel cannot. */
static __always_inline enum reason leave_inner(struct __sk_buff *skb, __u32 link_bytes, __u32 outer_bytes,
					       bool inner_is_ipv6)
{
	__u64 flags = inner_is_ipv6 ? ADJ_ROOM_DECAP_L3_IPV6 : ADJ_ROOM_DECAP_L3_IPV4;
	long error = bpf_skb_adjust_room(skb, -(__s32)outer_bytes, BPF_ADJ_ROOM_MAC, flags);
	struct ethhdr *ethernet;

	if (error)
		return error == -ENOMEM ? DROPPED_NO_ROOM : DROPPED_REFUSED;
	if (!link_bytes)
		return REASONS;
	ethernet = (void *)(long)skb->data;
	if ((void *)(ethernet + 1) > (void *)(long)skb->data_end)
		return DROPPED_MALFORMED;
	ethernet->h_proto = inner_is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return REASONS;
}

#else

#define CONTEXT struct xdp_md

/* Returns the packet at its IP header; false if it has none. */
static __always_inline bool open_arrived(struct xdp_md *ctx, __u32 link_bytes, struct cursor *cursor,
					 __be16 *protocol)
{
	struct ethhdr *ethernet;

	*cursor = (struct cursor){ (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	ethernet = take(cursor, link_bytes);
	if (!ethernet)
		return false;
	*protocol = ethernet->h_proto;
	return true;
}

/* Returns whether the kernel takes the packet. A switch that does not know where a device is sends its
 * frames to all others, and the kernel drops them there.
 */
static __always_inline bool is_for_node(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data;

	return (void *)(ethernet + 1) <= (void *)(long)ctx->data_end && is_for_device(ctx, ethernet);
}

/* Leaves [Ethernet | inner packet], with the Ethernet header of the replica. Returns REASONS, or why it
 * cannot.
 */
static __always_inline enum reason leave_inner(struct xdp_md *ctx, __u32 link_bytes, __u32 outer_bytes,
					       bool inner_is_ipv6)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data, header;

	(void)link_bytes;
	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return DROPPED_MALFORMED;
	header = *ethernet;
	header.h_proto = inner_is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (bpf_xdp_adjust_head(ctx, outer_bytes))
		return DROPPED_REFUSED;
	ethernet = (void *)(long)ctx->data;
	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return DROPPED_MALFORMED;
	*ethernet = header;
	return REASONS;
}

#endif

#endif

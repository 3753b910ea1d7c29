/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* A cursor over a socket buffer, of which a driver may have made only the first bytes directly
 * accessible.
 */
#ifndef HAWSER_SKB_H
#define HAWSER_SKB_H

#include "parse.h"

/* skb->pkt_type of linux/if_packet.h: to this host. */
#define PACKET_HOST 0

/* Makes the IP header (without options) and the `transport_bytes` after it directly accessible, if
 * the packet has them.
 */
static __always_inline struct cursor read_skb(struct __sk_buff *skb, __u32 transport_bytes)
{
	bool is_ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	__u32 ip_bytes = is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	__u32 wanted = sizeof(struct ethhdr) + ip_bytes + transport_bytes;
	struct cursor cursor = { (void *)(long)skb->data, (void *)(long)skb->data_end };

	if (unlikely(remaining(&cursor) < wanted && skb->len >= wanted)) {
		bpf_skb_pull_data(skb, wanted);
		cursor.at = (void *)(long)skb->data;
		cursor.end = (void *)(long)skb->data_end;
	}
	return cursor;
}

#endif

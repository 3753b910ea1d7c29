/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Forwards packets that a device without a link does not replicate: TCX at its egress, after the
 * program that replicates. The longest prefix determines the uplink and the next hop of a packet.
 * The routing table is not consulted: it has routed the packet here, and may have other routes to
 * the same prefix.
 */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <stddef.h>

#include "abi.h"

/* Looked up by a packet's destination. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct selector_key);
	__type(value, struct fallback);
	__uint(max_entries, 1024);
} fallbacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct fallback_stats);
	__uint(max_entries, 1);
} fallback_stats SEC(".maps");

/* Returns false for a packet that is not IP. */
static __always_inline bool read_destination(struct __sk_buff *skb, __u8 *address)
{
	__u32 at = sizeof(struct ethhdr);

	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return !bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, daddr), address, 16);
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return false;
	address[10] = address[11] = 0xff;
	return !bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, daddr), address + 12, 4);
}

SEC("tcx/egress")
int take_fallback(struct __sk_buff *skb)
{
	struct selector_key key = { .prefix_bits = 128 };
	struct bpf_redir_neigh next_hop = {};
	struct fallback_stats *stats;
	struct fallback *fallback;
	__u32 zero = 0;

	stats = bpf_map_lookup_elem(&fallback_stats, &zero);
	if (!stats)
		return TC_ACT_SHOT;
	fallback = read_destination(skb, key.address) ? bpf_map_lookup_elem(&fallbacks, &key) : NULL;
	if (!fallback) {
		stats->dropped++;
		return TC_ACT_SHOT;
	}
	stats->taken++;
	next_hop.nh_family = fallback->family;
	__builtin_memcpy(next_hop.ipv6_nh, fallback->next_hop, sizeof(fallback->next_hop));
	return bpf_redirect_neigh(fallback->ifindex, &next_hop, sizeof(next_hop), 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

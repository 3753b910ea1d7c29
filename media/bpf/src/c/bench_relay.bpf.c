/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The relay at an explicit time, for comparison with its specification, and a counter of what it
 * delivers.
 */
#include "relay.h"

__u64 now_ns; /* written by user space before each run */

SEC("tcx/ingress")
int relay_at(struct __sk_buff *skb)
{
	return relay_packet(skb, *(volatile __u64 *)&now_ns);
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} delivered SEC(".maps");

/* At the devices that packets are delivered to: counts the datagrams, those of a train one by one. */
SEC("tcx/ingress")
int deliver(struct __sk_buff *skb)
{
	__u32 zero = 0;
	__u64 *counter = bpf_map_lookup_elem(&delivered, &zero);

	if (counter)
		*counter += skb->gso_segs ?: 1;
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Counts what a relay delivers. */
#include "skb.h"

#include <linux/pkt_cls.h>

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

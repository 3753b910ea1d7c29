/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The relay at an explicit time, for comparison with its specification. */
#include "relay.h"

__u64 now_ns; /* written by user space before each run */

SEC("tcx/ingress")
int relay_at(struct __sk_buff *skb)
{
	return relay_packet(skb, *(volatile __u64 *)&now_ns);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

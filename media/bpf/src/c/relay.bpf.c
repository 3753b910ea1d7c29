/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The relay: TCX at the ingress of the devices that upstreams send media to. */
#include "relay.h"

SEC("tcx/ingress")
int relay(struct __sk_buff *skb)
{
	return relay_packet(skb, bpf_ktime_get_ns());
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

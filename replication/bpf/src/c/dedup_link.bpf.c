/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Deduplication at TC, TCX at the ingress of path-facing devices whose packets have no Ethernet header, or
 * on which XDP is refused. It uses the maps of the XDP object, so both see the same tables.
 */
#define AT_TC
#include "dedup.bpf.c"

#include <linux/pkt_cls.h>

static __always_inline int verdict_of(int action)
{
	return action == XDP_DROP ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* On devices without an Ethernet header. */
SEC("tcx/ingress")
int dedup_link(struct __sk_buff *skb)
{
	return verdict_of(deduplicate(skb, 0));
}

/* On devices with one. */
SEC("tcx/ingress")
int dedup_frame(struct __sk_buff *skb)
{
	return verdict_of(deduplicate(skb, sizeof(struct ethhdr)));
}

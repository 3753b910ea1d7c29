/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Deduplication on path-facing devices whose packets have no Ethernet header: TCX at their ingress. It
 * uses the maps of the XDP object, so both see the same tables.
 */
#define WITHOUT_ETHERNET
#include "dedup.bpf.c"

#include <linux/pkt_cls.h>

SEC("tcx/ingress")
int dedup_link(struct __sk_buff *skb)
{
	return deduplicate(skb) == XDP_DROP ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Times replication at TC against bare clones of the same packet to the same devices. A test run does not carry out the
 * redirection of the last copy, so a clone stands in for it on both sides.
 */
#include "replicate_tc.bpf.c"

#define OUTER_BYTES (sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(struct shim))

volatile const __u32 devices[MAX_PATHS]; /* of the bare clones, the last of them that of the last path */
volatile const __u32 copies;
volatile const struct ethhdr ethernet_header;

static __always_inline int send_last(struct __sk_buff *skb)
{
	return bpf_clone_redirect(skb, devices[(copies - 1) & (MAX_PATHS - 1)], 0);
}

/* Takes the outer headers off again. */
static __always_inline int undo(struct __sk_buff *skb)
{
	struct ethhdr *ethernet;

	if (bpf_skb_adjust_room(skb, -(int)OUTER_BYTES, BPF_ADJ_ROOM_MAC, 0))
		return TC_ACT_SHOT;
	ethernet = (void *)(long)skb->data;
	if ((void *)(ethernet + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	*ethernet = ethernet_header;
	return TC_ACT_OK;
}

SEC("tc")
int replicate_and_undo(struct __sk_buff *skb)
{
	if (replicate_skb(skb) != TC_ACT_REDIRECT || send_last(skb))
		return TC_ACT_SHOT;
	return undo(skb);
}

/* All but the last copy is sent. */
SEC("tc")
int replicate_unsent_and_undo(struct __sk_buff *skb)
{
	return replicate_skb(skb) == TC_ACT_REDIRECT ? undo(skb) : TC_ACT_SHOT;
}

static __always_inline int clones(struct __sk_buff *skb, __u32 count)
{
	for (__u32 i = 0; i < MAX_PATHS && i < count; i++) {
		if (bpf_clone_redirect(skb, devices[i], 0))
			return TC_ACT_SHOT;
	}
	return TC_ACT_OK;
}

SEC("tc")
int bare_clones(struct __sk_buff *skb)
{
	return clones(skb, copies);
}

/* All but the last copy is sent. */
SEC("tc")
int bare_clones_unsent(struct __sk_buff *skb)
{
	if (clones(skb, copies - 1) != TC_ACT_OK)
		return TC_ACT_SHOT;
	return bpf_redirect(devices[(copies - 1) & (MAX_PATHS - 1)], 0);
}

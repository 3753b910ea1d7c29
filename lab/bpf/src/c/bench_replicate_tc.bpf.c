/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Times replication at TC against bare clones of the same packet to the same devices. A test run
 * does not carry out a redirection, and encapsulation of a packet cannot be undone: so the test run
 * sends a clone of the packet by a device whose egress has the measured program.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#include "../../../../replication/bpf/src/c/abi.h"

volatile const __u32 device; /* the device that the packet is sent by */
volatile const __u32 devices[MAX_PATHS]; /* the devices of the clones */
volatile const __u32 copies;

/* The program that is test-run. */
SEC("tc")
int send(struct __sk_buff *skb)
{
	return bpf_clone_redirect(skb, device, 0) ? TC_ACT_SHOT : TC_ACT_OK;
}

static __always_inline int clone_to(struct __sk_buff *skb, __u32 count, int action)
{
	for (__u32 i = 0; i < MAX_PATHS && i < count; i++) {
		if (bpf_clone_redirect(skb, devices[i], 0))
			return TC_ACT_SHOT;
	}
	return action;
}

/* Baselines, attached at the same egress as the program of Sender::attach_local. */

SEC("tcx/egress")
int bare_clones(struct __sk_buff *skb)
{
	return clone_to(skb, copies, TC_ACT_SHOT);
}

SEC("tcx/egress")
int bare_clones_and_redirect(struct __sk_buff *skb)
{
	__u32 last = copies - 1;

	return clone_to(skb, last, bpf_redirect(devices[last & (MAX_PATHS - 1)], 0));
}

SEC("tcx/egress")
int discard(__attribute__((unused)) struct __sk_buff *skb)
{
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

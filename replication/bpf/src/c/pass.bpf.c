/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Passes every frame. The drivers of i40e, ice, ena and virtio_net accept redirected frames only on
 * devices with an XDP program. A program that knows of fragments does not limit the MTU.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	return ctx ? XDP_PASS : XDP_ABORTED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

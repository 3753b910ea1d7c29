/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Frames in XDP that are addressed to other devices. */
#ifndef HAWSER_FOREIGN_H
#define HAWSER_FOREIGN_H

#include "parse.h"

#include <bpf/bpf_core_read.h>

/* The fields of kernel structures that are read here. Their offsets are resolved when the program
 * is loaded.
 */
struct net_device {
	const unsigned char *dev_addr;
} __attribute__((preserve_access_index));

struct xdp_rxq_info {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct xdp_buff {
	struct xdp_rxq_info *rxq;
} __attribute__((preserve_access_index));

/* Available since Linux 6.2. */
void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;
void *bpf_rdonly_cast(const void *address, __u32 type) __ksym __weak;

/* Returns whether a frame is addressed to the device that it arrived on: in promiscuous mode a
 * device also receives other hosts' frames. Where the device's address cannot be read, accepts all
 * frames except multicast and broadcast.
 */
static __always_inline bool is_for_device(struct xdp_md *ctx, const struct ethhdr *ethernet)
{
	const __u32 *words, *destination = WORDS(ethernet);
	const struct ethhdr *own;
	struct xdp_buff *buffer;

	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx) || !bpf_ksym_exists(bpf_rdonly_cast))
		return !(ethernet->h_dest[0] & 1);
	buffer = bpf_cast_to_kern_ctx(ctx);
	own = bpf_rdonly_cast(buffer->rxq->dev->dev_addr, bpf_core_type_id_kernel(struct ethhdr));
	words = (void *)own->h_dest;
	return words[0] == destination[0] && *(__u16 *)&words[1] == *(__u16 *)&destination[1];
}

#endif

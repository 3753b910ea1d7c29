/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The replay window of tagged flows on its own, at explicit times, for comparison with its specification. */
#include "dedup.bpf.c"

/* A tagged packet and its times, as input for the window alone. */
struct observation {
	__u32 flow;
	__u32 max_age_us;
	__u64 sequence;
	__u64 sent_us;
	__u64 now_us;
};

/* Returns the verdict. */
SEC("xdp")
int judge(struct xdp_md *ctx)
{
	const struct observation *seen = (void *)(long)ctx->data;
	struct window *window;

	if ((void *)(seen + 1) > (void *)(long)ctx->data_end)
		return -1;
	window = bpf_map_lookup_elem(&windows, &seen->flow);
	if (!window)
		return -1;
	return observe_tagged(window, seen->sequence, seen->sent_us, seen->now_us, seen->max_age_us);
}

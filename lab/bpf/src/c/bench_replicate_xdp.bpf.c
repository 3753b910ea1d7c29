/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Times replication in XDP against a bare broadcast of the same packet to the same devices. Live
 * frames are recycled with the bytes that the previous run left, so both programs restore the bytes
 * that replication changes.
 */
#include "../../../../replication/bpf/src/c/replicate_xdp.bpf.c"

#define RESTORED (sizeof(struct ethhdr) + sizeof(struct iphdr))

struct path_set bare_set SEC(".maps");
struct path_set empty_set SEC(".maps");

/* The packet's headers; set before a run. */
__u8 headers[RESTORED];

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} arrived SEC(".maps");

static __always_inline bool restore(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;

	if (data + RESTORED > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(data, headers, RESTORED);
	return true;
}

SEC("xdp")
int replicate_restored(struct xdp_md *ctx)
{
	return restore(ctx) ? replicate_packet(ctx, true) : XDP_ABORTED;
}

SEC("xdp")
int bare_broadcast(struct xdp_md *ctx)
{
	return restore(ctx) ? bpf_redirect_map(&bare_set, 0, BPF_F_BROADCAST) : XDP_ABORTED;
}

SEC("xdp/devmap")
int empty_path(__attribute__((unused)) struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* A bare broadcast to paths with programs that do nothing: the least cost of copies that differ. */
SEC("xdp")
int broadcast_to_programs(struct xdp_md *ctx)
{
	return restore(ctx) ? bpf_redirect_map(&empty_set, 0, BPF_F_BROADCAST) : XDP_ABORTED;
}

/* At the other end of every path: counts arriving frames, to verify that the timed copies were
 * delivered.
 */
SEC("xdp")
int sink(__attribute__((unused)) struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&arrived, &zero);

	if (count)
		(*count)++;
	return XDP_DROP;
}

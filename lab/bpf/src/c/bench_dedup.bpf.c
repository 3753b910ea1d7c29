/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Times deduplication. A test run repeats a program on the packet that the previous run left, so a
 * program that accepts packets must build a new one each time; the cost of that is measured
 * separately.
 */
#include "../../../../replication/bpf/src/c/dedup.bpf.c"

#define OUTER_V4 (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(struct shim))
#define OUTER_V6 (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr) + sizeof(struct shim))
enum bench_limit {
	PREPARED = 65536, /* packets of a run */
};

/* For user space, see maps.h. */
volatile const enum bench_limit bench_limit_type = 0;

/* The fields that differ between packets, in sending order. */
struct prepared {
	__be64 sequence_be;
	__u8 tag[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct prepared);
	__uint(max_entries, PREPARED);
} prepared SEC(".maps");

/* User space sets both before a run. */
__u32 next_prepared;
__u8 outer[OUTER_V6]; /* the outer headers of every packet */

/* Overwrites the outer headers with those of the next packet. */
static __always_inline bool prepare(struct xdp_md *ctx, __u32 outer_bytes)
{
	void *data = (void *)(long)ctx->data;
	struct shim *shim = data + outer_bytes - sizeof(*shim);
	__u32 index = next_prepared++ & (PREPARED - 1);
	struct prepared *packet = bpf_map_lookup_elem(&prepared, &index);

	if (!packet || data + outer_bytes > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(data, outer, outer_bytes);
	shim->sequence_be = packet->sequence_be;
	__builtin_memcpy(shim->tag, packet->tag, sizeof(shim->tag));
	return true;
}

/* Adds the headroom again that decapsulation removed. */
static __always_inline int undo(struct xdp_md *ctx, __u32 outer_bytes)
{
	return bpf_xdp_adjust_head(ctx, (int)sizeof(struct ethhdr) - (int)outer_bytes) ? XDP_ABORTED : XDP_PASS;
}

static __always_inline int accept(struct xdp_md *ctx, __u32 outer_bytes)
{
	if (!prepare(ctx, outer_bytes) || deduplicate(ctx, sizeof(struct ethhdr)) != XDP_PASS)
		return XDP_ABORTED;
	return undo(ctx, outer_bytes);
}

SEC("xdp")
int accept_v4(struct xdp_md *ctx)
{
	return accept(ctx, OUTER_V4);
}

SEC("xdp")
int accept_v6(struct xdp_md *ctx)
{
	return accept(ctx, OUTER_V6);
}

/* The overhead of accept_v4, without accepting. */
SEC("xdp")
int restore(struct xdp_md *ctx)
{
	if (!prepare(ctx, OUTER_V4) || bpf_xdp_adjust_head(ctx, (int)(OUTER_V4 - sizeof(struct ethhdr))))
		return XDP_ABORTED;
	return undo(ctx, OUTER_V4);
}

/* The minimum cost of a test run. */
SEC("xdp")
int bare_drop(__attribute__((unused)) struct xdp_md *ctx)
{
	return XDP_DROP;
}

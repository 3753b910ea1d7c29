/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Replication of transit traffic: XDP on the devices that flows arrive on. The ingress program puts
 * the shim in front of the packet and broadcasts it to the set of paths; a program per path, run by
 * the devmap, adds the outer headers. A device may not accept such frames. Packets of flows with a
 * path over such a device are left to the programs of replicate_tc.bpf.c.
 *
 * The kernel queues redirected frames per device until the end of a poll and runs on all of them
 * the program that came with the first frame. So a path has one program for every form of copy, no
 * frame goes to a path's device by any other redirection, and no two paths have the same device.
 */
#include "sending.h"

#include "digest.h"
#include "extensions.h"
#include "fitting.h"
#include "foreign.h"
#include "martian.h"
#include "partial.h"
#include "path_tos.h"

struct path_set {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
	__uint(max_entries, MAX_PATHS);
};

/* Index: the path set. Holds a map for every set, but paths that are not configured are missing
 * from it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, 256);
	__array(values, struct path_set);
} path_sets SEC(".maps");

static __always_inline int pass(enum reason reason)
{
	count(reason);
	return XDP_PASS;
}

static __always_inline int drop(enum reason reason)
{
	count(reason);
	return XDP_DROP;
}

/* Returns why a packet in transit must not be replicated by this node; 0 if it may be. Replicas are
 * replicated only if a rule names their ports, which is then intended.
 */
static __always_inline __u8 transit_exclusion(struct xdp_md *ctx, const struct ethhdr *ethernet, const struct packet *packet,
				  __u8 rule_flags)
{
	if (!is_for_device(ctx, ethernet))
		return PASSED_FOREIGN_MAC;
	if (!(rule_flags & RULE_PORTS) && is_replica(packet))
		return PASSED_REPLICA;
	return martian(packet, (void *)(long)ctx->data_end);
}

static __always_inline int broadcast_transparent(struct xdp_md *ctx, const struct packet *packet, __u32 index,
						 __u32 paths, bool transit)
{
	struct handover *handover = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)handover + sizeof(struct ethhdr);
	void *end = (void *)(long)ctx->data_end;
	void *set;

	if ((void *)(ip + 1) > end || !identifiable(packet, ip))
		return pass(PASSED_NOT_IDENTIFIABLE);
	set = bpf_map_lookup_elem(&path_sets, &paths);
	if (!set)
		return pass(PASSED_NO_PATH);
	if (transit && !forward_once(ip, end, false))
		return pass(PASSED_MALFORMED);
	if (transit && !packet->padding_bytes)
		complete_partial(ctx, sizeof(struct ethhdr));
	handover->kind = HANDOVER_TRANSPARENT;
	handover->flow = index;
	account(&tx_flow_stats, index, packet->bytes);
	account(&tx_set_stats, paths, packet->bytes);
	return bpf_redirect_map(set, 0, BPF_F_BROADCAST);
}

/* Hashes what is the same in all copies of the packet in [Ethernet | packet of `bytes`], except for
 * the shim.
 */
static __always_inline bool seal_packet(struct xdp_md *ctx, const struct tx_flow *flow, __u32 offset, __u32 bytes,
					struct sealing *sealing)
{
	const struct shim_keys *keys = sending_keys(flow);
	void *end = (void *)(long)ctx->data_end;

	if (!seal_headers(sealing, &keys->seal, (void *)(long)ctx->data + offset, end, bytes))
		return false;
	if (flow->flags & FLOW_WHOLE)
		seal_digest(sealing, digest_of_packet(ctx, offset, bytes, keys->digest.k0, keys->digest.k1));
	return true;
}

/* Replaces the Ethernet header with the handover metadata and the shim, and removes the padding
 * after the packet.
 */
static __always_inline int broadcast_encapsulated(struct xdp_md *ctx, const struct packet *packet,
						  const struct tx_flow *flow, __u32 index,
						  const struct policy *policy, struct route *route, bool transit)
{
	__u64 *sequence = bpf_map_lookup_elem(&sequences, &index);
	struct handover *handover;
	struct sealing sealing = {};
	struct shim *shim;
	void *end, *set;
	__u64 number;
	__u32 paths;

	if (!sequence)
		return pass(PASSED_NO_PATH);
	if (flow->flags & FLOW_WHOLE && packet->bytes > DIGEST_BYTES_MAX)
		return pass(PASSED_OVERSIZE);
	if (packet->padding_bytes && bpf_xdp_adjust_tail(ctx, -(int)packet->padding_bytes))
		return pass(PASSED_NO_ROOM);
	if (bpf_xdp_adjust_head(ctx, (int)sizeof(struct ethhdr) - (int)(sizeof(*handover) + sizeof(*shim))))
		return pass(PASSED_NO_ROOM);
	handover = (void *)(long)ctx->data;
	shim = (void *)(handover + 1);
	end = (void *)(long)ctx->data_end;
	if ((void *)(shim + 1) > end || (transit && !forward_once(shim + 1, end, packet->is_ipv6)))
		return drop(DROPPED_MALFORMED);
	if (transit)
		complete_partial(ctx, sizeof(*handover) + sizeof(*shim));
	number = __sync_fetch_and_add(sequence, 1);
	probe(packet, policy, number, 0, route);
	paths = route->paths;
	fill_shim(shim, flow, paths, policy->epoch, number);
	handover->kind = HANDOVER_ENCAPSULATED;
	handover->flow = index;
	if (flow->flags & FLOW_TAGGED) {
		if (!seal_packet(ctx, flow, sizeof(*handover) + sizeof(*shim), packet->bytes, &sealing))
			return drop(DROPPED_MALFORMED);
		seal_shim(&sealing, shim);
		handover->seal = sealing.state;
		handover->sealed_bytes = sealing.bytes;
	}
	handover->inner_sum = route->flags & ROUTE_OUTER_IPV6 ? sum_of_packet(ctx, sizeof(*handover) + sizeof(*shim)) : 0;
	set = bpf_map_lookup_elem(&path_sets, &paths);
	if (!set)
		return drop(DROPPED_PATH_NOT_CONFIGURED);
	account(&tx_flow_stats, index, packet->bytes);
	account(&tx_set_stats, paths, packet->bytes);
	return bpf_redirect_map(set, 0, BPF_F_BROADCAST);
}

/* `transit`: the packet passes through this node, which counts as a hop. */
static __always_inline int replicate_packet(struct xdp_md *ctx, bool transit)
{
	struct cursor cursor = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct policy policy;
	struct packet packet;
	struct tx_flow *flow;
	struct route route;
	enum reason reason;
	struct selected selected;
	bool transparent;
	__u32 index;
	__u8 why;

	if (!ethernet)
		return XDP_PASS;
	switch (parse_ip(&cursor, ethernet->h_proto, remaining(&cursor), &packet)) {
	case PARSED:
		break;
	case VLAN:
		return pass(PASSED_VLAN);
	case MALFORMED:
		return pass(PASSED_MALFORMED);
	default:
		return XDP_PASS;
	}
	find_transport(ctx, &packet);
	if (!select_packet(&packet, true, &selected)) {
		if (transit && selected.is_missed && !transit_exclusion(ctx, ethernet, &packet, 0))
			note_missed(&packet);
		return XDP_PASS;
	}
	index = selected.flow;
	flow = bpf_map_lookup_elem(&tx_flows, &index);
	if (!flow || !read_policy(index, &policy) || !replicates(&policy) || !read_route(policy.code, &route))
		return XDP_PASS;
	if (is_cloned(&policy, &route))
		return XDP_PASS; /* to the TC program behind this one */
	why = transit ? transit_exclusion(ctx, ethernet, &packet, selected.flags) : 0;
	if (why)
		return pass(why);
	transparent = flow->flags & FLOW_TRANSPARENT;
	fit(&packet, transparent, &route);
	reason = obstacle(&packet, &route, transparent);
	if (reason != REASONS)
		return pass(reason);
	if (transit && packet.ttl <= 1)
		return pass(PASSED_TTL);
	if (transparent)
		return broadcast_transparent(ctx, &packet, index, route.paths, transit);
	return broadcast_encapsulated(ctx, &packet, flow, index, &policy, &route, transit);
}

SEC("xdp")
int replicate(struct xdp_md *ctx)
{
	return replicate_packet(ctx, true);
}

/* Runs on the peer of a loop's veth, see replicate_tc.bpf.c, which also forwards what is not
 * replicated.
 */
SEC("xdp")
int replicate_looped(struct xdp_md *ctx)
{
	return replicate_packet(ctx, false);
}

static __always_inline int drop_copy(__u32 path, enum reason reason)
{
	count_lost_copy(path, reason);
	return XDP_DROP;
}

/* [handover | shim | inner packet] becomes [Ethernet | outer IP | UDP | shim | inner packet]. */
static __always_inline int encapsulate(struct xdp_md *ctx, __u32 index)
{
	struct tx_path *path = bpf_map_lookup_elem(&tx_paths, &index);
	void *end = (void *)(long)ctx->data_end;
	struct handover *handover = (void *)(long)ctx->data;
	struct shim *shim = (void *)(handover + 1);
	__u32 inner_bytes, udp_bytes, outer_bytes, flow_index, inner_sum;
	struct sealing sealing;
	struct ethhdr *ethernet;
	__u8 traffic_class;
	__u8 *inner = (void *)(shim + 1);

	if (!path || !path->family)
		return drop_copy(index, DROPPED_PATH_NOT_CONFIGURED);
	if ((void *)(inner + 2) > end)
		return drop_copy(index, DROPPED_MALFORMED);
	flow_index = handover->flow;
	traffic_class = inner[0] >> 4 == 4 ? inner[1] : inner[0] << 4 | inner[1] >> 4;
	inner_sum = handover->inner_sum;
	sealing = (struct sealing){ handover->seal, handover->sealed_bytes };
	finish_shim(shim, &sealing, index);
	inner_bytes = end - (void *)inner;
	udp_bytes = sizeof(struct udphdr) + sizeof(*shim) + inner_bytes;
	outer_bytes = path->family == AF_INET6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (bpf_xdp_adjust_head(ctx, (int)sizeof(*handover) -
					     (int)(sizeof(*ethernet) + outer_bytes + sizeof(struct udphdr))))
		return drop_copy(index, DROPPED_NO_ROOM);
	ethernet = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (path->family == AF_INET6) {
		struct ipv6hdr *ip = (void *)(ethernet + 1);
		struct udphdr *udp = (void *)(ip + 1);

		if ((void *)(udp + 1) > end)
			return drop_copy(index, DROPPED_MALFORMED);
		shim = (void *)(udp + 1);
		if ((void *)(shim + 1) > end)
			return drop_copy(index, DROPPED_MALFORMED);
		/* Unknown if the policy had no path over IPv6 when the packet was processed. */
		if (unlikely(!inner_sum))
			inner_sum = sum_of_packet(ctx, (void *)(shim + 1) - (void *)(long)ctx->data);
		write_ethernet(ethernet, path, bpf_htons(ETH_P_IPV6));
		write_ipv6(ip, path, traffic_class, udp_bytes);
		write_udp(udp, path, udp_bytes, udp_checksum(path, udp_bytes, shim, inner_sum));
	} else {
		struct iphdr *ip = (void *)(ethernet + 1);
		struct udphdr *udp = (void *)(ip + 1);

		if ((void *)(udp + 1) > end)
			return drop_copy(index, DROPPED_MALFORMED);
		write_ethernet(ethernet, path, bpf_htons(ETH_P_IP));
		write_ipv4(ip, path, traffic_class, udp_bytes);
		write_udp(udp, path, udp_bytes, 0);
	}
	account(&tx_path_stats, flow_index * MAX_PATHS + index, inner_bytes);
	return XDP_PASS;
}

/* The transparent form of the paper: next hop and path index are rewritten, nothing is added. */
static __always_inline int readdress(struct xdp_md *ctx, __u32 index)
{
	struct tx_path *path = bpf_map_lookup_elem(&tx_paths, &index);
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct handover *handover = (void *)ethernet;
	struct iphdr *ip = (void *)(ethernet + 1);

	if (!path || !path->family)
		return drop_copy(index, DROPPED_PATH_NOT_CONFIGURED);
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return drop_copy(index, DROPPED_MALFORMED);
	account(&tx_path_stats, handover->flow * MAX_PATHS + index, bpf_ntohs(ip->tot_len));
	write_ethernet(ethernet, path, bpf_htons(ETH_P_IP));
	replace_tos(ip, path_tos(index, ip->tos));
	return XDP_PASS;
}

static __always_inline int send_copy(struct xdp_md *ctx, __u32 index)
{
	__u8 *kind = (void *)(long)ctx->data;

	if ((void *)(kind + 1) > (void *)(long)ctx->data_end)
		return drop_copy(index, DROPPED_MALFORMED);
	return *kind == HANDOVER_ENCAPSULATED ? encapsulate(ctx, index) : readdress(ctx, index);
}

#define PATH_PROGRAM(n)                                                                                                \
	SEC("xdp/devmap") int path_##n(struct xdp_md *ctx)                                                             \
	{                                                                                                              \
		return send_copy(ctx, n);                                                                              \
	}

PATH_PROGRAM(0)
PATH_PROGRAM(1)
PATH_PROGRAM(2)
PATH_PROGRAM(3)
PATH_PROGRAM(4)
PATH_PROGRAM(5)
PATH_PROGRAM(6)
PATH_PROGRAM(7)
_Static_assert(MAX_PATHS == 8, "one program per path");

char LICENSE[] SEC("license") = "Dual BSD/GPL";

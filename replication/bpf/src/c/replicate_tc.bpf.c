/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Replication at TC, where copies are clones: of locally generated traffic at the egress of the
 * devices that the default routes use, and of transit traffic at the ingress of the devices that XDP
 * does not serve, because it does not run on them or because the device of a path takes no frames.
 */
#define CONTEXT struct __sk_buff
#define LOAD_BYTES bpf_skb_load_bytes
#include "cloning.h"

#include <asm-generic/errno.h>

#include "digest.h"
#include "extensions.h"
#include "fitting.h"
#include "management.h"
#include "martian.h"
#include "skb.h"
#include "sum.h"

/* Key: ifindex of the device that a packet leaves by. Value: ifindex of the entry of its loop, a veth
 * pair. A loop takes the packets that need more than a rewritten head: a GSO packet must be segmented
 * and its checksums completed first, and a UDP checksum over IPv6 and a tag that covers the whole
 * packet need all of it, with its checksum completed. At the exit, `replicate_looped` replicates in
 * XDP, and `replicate_exit` the packets whose copies are clones.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 64);
} loops SEC(".maps");

/* Key: ifindex of the device that a packet arrives on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct transit);
	__uint(max_entries, 64);
} transits SEC(".maps");

/* Key: ifindex of a loop's exit. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct loop_device);
	__uint(max_entries, 64);
} loop_devices SEC(".maps");

/* Value of tc_index, which nothing else uses here: the packet has been through a loop and was not
 * replicated, or is a transparent copy. It is not replicated again.
 */
#define LOOPED 0x4857

/* Where a packet is replicated. */
struct place {
	__u32 loop; /* ifindex of the entry of the loop for packets that need one; 0 = none */
	bool is_exit;
	bool is_transit; /* the packet passes through this node, which counts as a hop */
	bool behind_xdp; /* an XDP program replicates, unless copies are clones */
};

static __always_inline int pass(enum reason reason)
{
	count(reason);
	return TC_ACT_UNSPEC;
}

/* Passes a packet before it is known whether its copies are clones. An XDP program in front has
 * counted it.
 */
static __always_inline int pass_unselected(const struct place *place, enum reason reason)
{
	if (!place->behind_xdp)
		count(reason);
	return TC_ACT_UNSPEC;
}

static __always_inline int segment(const struct place *place)
{
	if (!place->loop)
		return pass(PASSED_GSO);
	return bpf_redirect(place->loop, 0);
}

static __always_inline int drop(enum reason reason)
{
	count(reason);
	return TC_ACT_SHOT;
}

/* Drops the packet, whose copies by these paths have not left. */
static __always_inline int lose_copies(__u32 paths, enum reason reason)
{
	for (__u32 path = 0; path < MAX_PATHS; path++) {
		if (paths & (1 << path))
			count_lost_copy(path, reason);
	}
	return TC_ACT_SHOT;
}

static __always_inline bool probes_over_ipv6(const struct policy *policy)
{
	struct route probed;

	return policy->probe_shift && read_route(policy->code | policy->probes, &probed) &&
	       probed.flags & ROUTE_OUTER_IPV6;
}

/* Returns whether a packet has to go through the loop. If probes use a path over IPv6, the loop takes
 * all packets, because it assigns the sequence numbers.
 */
static __always_inline bool needs_loop(const struct place *place, const struct __sk_buff *skb,
				       const struct tx_flow *flow, const struct policy *policy,
				       const struct route *route)
{
	if (place->is_exit)
		return false;
	return flow->flags & (FLOW_TRANSPARENT | FLOW_WHOLE) || skb->gso_size || route->flags & ROUTE_OUTER_IPV6 ||
	       (place->loop && probes_over_ipv6(policy));
}

/* Returns why a packet must not be replicated by this node; 0 if it may be. The first program has
 * examined the packets at the exit of a loop.
 */
static __always_inline __u8 exclusion(const struct place *place, const struct __sk_buff *skb,
				      const struct packet *packet, const void *end, __u8 rule_flags)
{
	struct endpoint to = {};
	__u8 why;

	if (place->is_exit)
		return 0;
	if (place->is_transit && skb->pkt_type != PACKET_HOST)
		return PASSED_FOREIGN_MAC;
	if (place->is_transit && !(rule_flags & RULE_PORTS) && is_replica(packet))
		return PASSED_REPLICA;
	why = martian(packet, end);
	/* Packets that the node forwards have an ingress interface. */
	if (why || place->is_transit || skb->ingress_ifindex)
		return why;
	to.port = packet->destination_port;
	to.protocol = packet->protocol;
	__builtin_memcpy(to.address, packet->destination, sizeof(to.address));
	return is_management(&to, packet->source_port, rule_flags) ? PASSED_MANAGEMENT : 0;
}

static __always_inline int clone_transparent(struct __sk_buff *skb, const struct place *place,
					     const struct packet *packet, __u32 index, __u32 paths)
{
	struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr);
	struct copies copies = { .flow = index, .inner_bytes = packet->bytes };
	void *end = (void *)(long)skb->data_end;

	if ((void *)(ip + 1) > end || !identifiable(packet, ip))
		return pass(PASSED_NOT_IDENTIFIABLE);
	if (place->is_transit && !forward_once(ip, end, false))
		return pass(PASSED_MALFORMED);
	account(&tx_flow_stats, index, packet->bytes);
	account(&tx_set_stats, paths, packet->bytes);
	skb->tc_index = LOOPED;
	make_transparent_copies(skb, &copies, paths);
	return send_last(&copies.waiting);
}

/* Hashes what is the same in all copies of the packet at `offset`, except for the shim. */
static __always_inline bool seal_packet(struct __sk_buff *skb, const struct tx_flow *flow, __u32 offset, __u32 bytes,
					struct sealing *sealing)
{
	const struct shim_keys *keys = sending_keys(flow);
	void *end = (void *)(long)skb->data_end;

	if (!seal_headers(sealing, &keys->seal, (void *)(long)skb->data + offset, end, bytes))
		return false;
	if (flow->flags & FLOW_WHOLE)
		seal_digest(sealing, digest_of_packet(skb, offset, bytes, keys->digest.k0, keys->digest.k1));
	return true;
}

/* Makes room for the outer headers of the largest kind among the paths. The kernel keeps the offsets of one
 * inner packet for devices that complete checksums: it refuses a packet that is already one in another, unless
 * nothing is left to a device, as behind a loop. Returns 0 or a negative error.
 */
static __always_inline long make_room(struct __sk_buff *skb, const struct place *place, bool over_ipv6)
{
	__u64 flags = BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      (over_ipv6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	__u32 outer_bytes = over_ipv6 ? OUTER_V6 : OUTER_V4;
	long error = bpf_skb_adjust_room(skb, outer_bytes, BPF_ADJ_ROOM_MAC, flags);

	return error == -EALREADY && place->is_exit ? bpf_skb_adjust_room(skb, outer_bytes, BPF_ADJ_ROOM_MAC, 0)
						    : error;
}

/* Returns the reason that a packet is passed whose size cannot be changed, from the helper's negative error. */
static __always_inline enum reason passed_because(long error)
{
	return error == -ENOMEM ? PASSED_NO_ROOM : PASSED_REFUSED;
}

/* Prepares the shim and what is the same in all copies, for which there is room. On failure, returns the
 * reason, and REASONS otherwise.
 */
static __always_inline enum reason open_packet(struct __sk_buff *skb, const struct place *place,
					       const struct packet *packet, const struct tx_flow *flow, bool over_ipv6,
					       struct copies *copies)
{
	__u32 offset = sizeof(struct ethhdr) + (over_ipv6 ? OUTER_V6 : OUTER_V4);
	void *inner, *end;

	inner = (void *)(long)skb->data + offset;
	end = (void *)(long)skb->data_end;
	if (place->is_transit && !forward_once(inner, end, packet->is_ipv6))
		return DROPPED_MALFORMED;
	if (flow->flags & FLOW_TAGGED && !seal_packet(skb, flow, offset, packet->bytes, &copies->sealing))
		return DROPPED_MALFORMED;
	seal_shim(&copies->sealing, &copies->shim);
	if (over_ipv6)
		copies->inner_sum = sum_of_packet(skb, offset);
	return REASONS;
}

static __always_inline int clone_encapsulated(struct __sk_buff *skb, const struct place *place,
					      const struct packet *packet, const struct tx_flow *flow, __u32 index,
					      const struct policy *policy, struct route *route)
{
	__u64 *sequence = bpf_map_lookup_elem(&sequences, &index);
	struct copies copies = {
		.flow = index,
		.inner_bytes = packet->bytes,
		.traffic_class = packet->traffic_class,
	};
	__u32 over_ipv6, over_ipv4;
	enum reason reason;
	__u64 number;
	long error;

	if (!sequence)
		return pass(PASSED_NO_PATH);
	if (flow->flags & FLOW_WHOLE && packet->bytes > DIGEST_BYTES_MAX)
		return pass(PASSED_OVERSIZE);
	if (packet->padding_bytes) {
		error = bpf_skb_change_tail(skb, skb->len - packet->padding_bytes, 0);
		if (error)
			return pass(passed_because(error));
	}
	/* A checksum or a digest of the whole packet is computed only at the exit of a loop. */
	if (place->is_exit) {
		error = bpf_skb_pull_data(skb, skb->len);
		if (error)
			return pass(passed_because(error));
	}
	/* Before a packet in a packet takes a number: a loop prepares it first. */
	if (!place->is_exit) {
		error = make_room(skb, place, false);
		if (error == -EALREADY)
			return segment(place);
		if (error)
			return pass(passed_because(error));
	}
	number = __sync_fetch_and_add(sequence, 1);
	probe(packet, policy, number, place->is_exit ? 0 : ROUTE_OUTER_IPV6, route);
	fill_shim(&copies.shim, flow, route->paths, policy->epoch, number);
	over_ipv6 = place->is_exit ? route->ipv6_paths : 0;
	over_ipv4 = route->paths & ~over_ipv6;
	if (place->is_exit) {
		error = make_room(skb, place, over_ipv6);
		if (error)
			return pass(passed_because(error));
	}
	reason = open_packet(skb, place, packet, flow, over_ipv6, &copies);
	if (reason != REASONS)
		return drop(reason);
	account(&tx_flow_stats, index, packet->bytes);
	account(&tx_set_stats, route->paths, packet->bytes);
	if (over_ipv6) {
		make_copies(skb, &copies, over_ipv6, AF_INET6);
		if (over_ipv4) {
			flush(skb, &copies.waiting);
			error = bpf_skb_adjust_room(skb, (__s32)OUTER_V4 - (__s32)OUTER_V6, BPF_ADJ_ROOM_MAC,
						    BPF_F_ADJ_ROOM_DECAP_L3_IPV4);
			if (error)
				return lose_copies(over_ipv4, error == -ENOMEM ? DROPPED_NO_ROOM : DROPPED_REFUSED);
		}
	}
	if (over_ipv4)
		make_copies(skb, &copies, over_ipv4, AF_INET);
	return send_last(&copies.waiting);
}

static __always_inline int replicate_skb(struct __sk_buff *skb, const struct place *place)
{
	struct cursor cursor = read_skb(skb, 4);
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct selected selected;
	struct policy policy;
	struct packet packet;
	struct tx_flow *flow;
	struct route route;
	enum reason reason;
	bool transparent, is_selected;
	__u32 index;
	__u8 why;

	if (!ethernet)
		return TC_ACT_UNSPEC;
	if (skb->vlan_present)
		return pass_unselected(place, PASSED_VLAN);
	switch (parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet)) {
	case PARSED:
		break;
	case VLAN:
		return pass_unselected(place, PASSED_VLAN);
	case MALFORMED:
		return pass_unselected(place, PASSED_MALFORMED);
	default:
		return TC_ACT_UNSPEC;
	}
	find_transport(skb, &packet);
	if (!place->is_transit && is_replica(&packet))
		return TC_ACT_UNSPEC;
	is_selected = select_packet(&packet, !place->behind_xdp, &selected);
	if (!is_selected && (!selected.is_missed || place->is_exit || place->behind_xdp))
		return TC_ACT_UNSPEC;
	why = exclusion(place, skb, &packet, cursor.end, is_selected ? selected.flags : 0);
	if (!is_selected) {
		if (!why)
			note_missed(&packet);
		return TC_ACT_UNSPEC;
	}
	index = selected.flow;
	flow = bpf_map_lookup_elem(&tx_flows, &index);
	if (!flow || !read_policy(index, &policy) || !replicates(&policy) || !read_route(policy.code, &route))
		return TC_ACT_UNSPEC;
	if (place->behind_xdp && !is_cloned(&policy, &route))
		return TC_ACT_UNSPEC;
	if (why)
		return pass(why);
	if (place->is_transit && packet.ttl <= 1)
		return pass(PASSED_TTL);
	if (needs_loop(place, skb, flow, &policy, &route))
		return segment(place);
	transparent = flow->flags & FLOW_TRANSPARENT;
	fit(&packet, transparent, &route);
	reason = obstacle(&packet, &route, transparent);
	if (reason != REASONS)
		return pass(reason);
	if (packet.padding_bytes && !place->is_transit)
		return pass(PASSED_MALFORMED);
	if (place->is_exit && transparent)
		return clone_transparent(skb, place, &packet, index, route.paths);
	return clone_encapsulated(skb, place, &packet, flow, index, &policy, &route);
}

/* Returns whether the packet must not be replicated again, and removes the mark that says so. */
static __always_inline bool take_mark(struct __sk_buff *skb)
{
	if (skb->tc_index != LOOPED)
		return false;
	skb->tc_index = 0;
	return true;
}

SEC("tcx/egress")
int replicate_local(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	__u32 *loop = bpf_map_lookup_elem(&loops, &ifindex);
	struct place place = { .loop = loop ? *loop : 0 };

	return take_mark(skb) ? TC_ACT_UNSPEC : replicate_skb(skb, &place);
}

SEC("tcx/ingress")
int replicate_transit(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct transit *transit = bpf_map_lookup_elem(&transits, &ifindex);
	struct place place = { .is_transit = true };

	if (!transit || take_mark(skb))
		return TC_ACT_UNSPEC;
	place.loop = transit->entry;
	place.behind_xdp = transit->behind_xdp;
	return replicate_skb(skb, &place);
}

static __always_inline int replicate_looped_skb(struct __sk_buff *skb, bool is_transit, bool behind_xdp)
{
	struct place place = { .is_exit = true, .is_transit = is_transit, .behind_xdp = behind_xdp };

	return replicate_skb(skb, &place);
}

/* At the exit of a loop. A packet that is not replicated there goes on as before the loop: it leaves
 * by the device that it was routed to, or arrives again on the device that it came from. It still has
 * its Ethernet header.
 */
SEC("tcx/ingress")
int replicate_exit(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct loop_device *device = bpf_map_lookup_elem(&loop_devices, &ifindex);
	int action;

	if (!device)
		return TC_ACT_UNSPEC;
	action = device->is_transit ? replicate_looped_skb(skb, true, false)
				    : replicate_looped_skb(skb, false, device->behind_xdp);
	if (action != TC_ACT_UNSPEC)
		return action;
	skb->tc_index = LOOPED;
	return bpf_redirect(device->ifindex, device->is_transit ? BPF_F_INGRESS : 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

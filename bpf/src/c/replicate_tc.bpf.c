/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Replication of locally generated traffic: TCX at the egress of the devices that the default
 * routes use. The program writes the headers of a path, clones the packet to the path's device, and
 * overwrites the headers with those of the next path.
 */
#include "sending.h"

#include "martian.h"
#include "skb.h"

#include <linux/pkt_cls.h>

/* Key: ifindex of the device that a packet leaves by. Value: ifindex of a veth whose peer runs
 * `replicate_looped`. The loop takes the packets that TC cannot replicate: a GSO packet must be
 * segmented and its checksums completed first, a transparent copy must not pass through TC again at
 * the path's device, and a UDP checksum over IPv6 and a tag that covers the whole packet need all
 * of it, with its checksum completed.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 64);
} loops SEC(".maps");

/* Key: ifindex of a loop's XDP end. Value: ifindex of the device that its packets were routed to.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 64);
} loop_devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct endpoint);
	__type(value, __u8);
	__uint(max_entries, 1024);
} own_endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct management);
	__uint(max_entries, 1);
} management SEC(".maps");

/* Value of tc_index, which nothing else uses here: the packet has been through a loop and was not
 * replicated.
 */
#define LOOPED 0x4857

static __always_inline int pass(enum reason reason)
{
	count(reason);
	return TC_ACT_UNSPEC;
}

static __always_inline int segment(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	__u32 *loop = bpf_map_lookup_elem(&loops, &ifindex);

	if (!loop)
		return pass(PASSED_GSO);
	return bpf_redirect(*loop, 0);
}

static __always_inline int drop(enum reason reason)
{
	count(reason);
	return TC_ACT_SHOT;
}

/* Overwrites [Ethernet | outer IPv4 | UDP | shim] at the start of the packet for a path; false if
 * the packet is too short.
 */
static __always_inline bool write_headers(struct __sk_buff *skb, const struct tx_path *path, __u32 index,
					  const struct shim *shim, const struct sealing *sealing, __u8 tos,
					  __u32 inner_bytes)
{
	struct ethhdr *ethernet = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct shim *copy = (void *)(udp + 1);
	__u32 udp_bytes = sizeof(*udp) + sizeof(*copy) + inner_bytes;

	if ((void *)(copy + 1) > (void *)(long)skb->data_end)
		return false;
	write_ethernet(ethernet, path, bpf_htons(ETH_P_IP));
	write_ipv4(ip, path, tos, udp_bytes);
	write_udp(udp, path, udp_bytes, 0);
	*copy = *shim;
	finish_shim(copy, sealing, index);
	return true;
}

/* Returns whether probes use a path over IPv6 and there is a loop to send them. The loop then takes
 * all packets, because it assigns the sequence numbers.
 */
static __always_inline bool probes_by_loop(struct __sk_buff *skb, const struct policy *policy)
{
	__u32 ifindex = skb->ifindex;
	struct route probed;

	return policy->probe_shift && read_route(policy->code | policy->probes, &probed) &&
	       probed.flags & ROUTE_OUTER_IPV6 && bpf_map_lookup_elem(&loops, &ifindex);
}

static __always_inline bool is_management_port(__u16 source_port)
{
	__u32 zero = 0;
	const struct management *own = bpf_map_lookup_elem(&management, &zero);

	for (__u32 i = 0; own && i < MANAGEMENT_PORTS; i++) {
		if (own->ports[i] && own->ports[i] == source_port)
			return true;
	}
	return false;
}

/* Returns whether nodes use the port for name resolution (53, 853) or address configuration (67, 68
 * over IPv4; 546, 547 over IPv6).
 */
static __always_inline bool is_service_port(__u8 protocol, __u16 port)
{
	switch (port) {
	case 53:
	case 853:
		return protocol == IPPROTO_UDP || protocol == IPPROTO_TCP;
	case 67:
	case 68:
	case 546:
	case 547:
		return protocol == IPPROTO_UDP;
	default:
		return false;
	}
}

/* Returns whether a packet of this node is management traffic, part of name resolution or address
 * configuration, or a path measurement: it must not depend on the paths and on the node at their
 * other end. A rule with source ports includes management ports; one with destination ports or a
 * narrow prefix includes name servers and DHCP. Not inlined, so that the verifier checks it once
 * instead of following each of its outcomes.
 */
__noinline int is_management(const struct endpoint *to, __u16 source_port, __u8 rule_flags)
{
	if (!to || !to->port)
		return false;
	if (to->protocol == IPPROTO_TCP && !(rule_flags & RULE_SOURCE_PORTS) && is_management_port(source_port))
		return true;
	if (!(rule_flags & RULE_SERVICES) && is_service_port(to->protocol, to->port))
		return true;
	/* Before Linux 6.4, a key must be in a map or on the stack. */
	struct endpoint key = *to;
	return bpf_map_lookup_elem(&own_endpoints, &key) != NULL;
}

static __always_inline int replicate_skb(struct __sk_buff *skb)
{
	struct cursor cursor = read_skb(skb, 4);
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct sealing sealing = {};
	__u32 index, inner_bytes, ifindex = 0;
	struct selected selected;
	struct endpoint to = {};
	struct policy policy;
	struct packet packet;
	struct tx_flow *flow;
	struct route route;
	enum reason reason;
	__u64 *sequence, number;
	struct shim shim;
	__u8 why;
	__u64 flags = BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;

	if (!ethernet)
		return TC_ACT_UNSPEC;
	if (skb->tc_index == LOOPED) {
		skb->tc_index = 0;
		return TC_ACT_UNSPEC;
	}
	if (skb->vlan_present)
		return pass(PASSED_VLAN);
	switch (parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet)) {
	case PARSED:
		break;
	case VLAN:
		return pass(PASSED_VLAN);
	case MALFORMED:
		return pass(PASSED_MALFORMED);
	default:
		return TC_ACT_UNSPEC;
	}
	if (is_replica(&packet))
		return TC_ACT_UNSPEC;
	if (!select_packet(&packet, &selected))
		return TC_ACT_UNSPEC;
	index = selected.flow;
	flow = bpf_map_lookup_elem(&tx_flows, &index);
	sequence = bpf_map_lookup_elem(&sequences, &index);
	if (!flow || !sequence || !read_policy(index, &policy) || !replicates(&policy) ||
	    !read_route(policy.code, &route))
		return TC_ACT_UNSPEC;
	why = martian(&packet, cursor.end);
	if (why)
		return pass(why);
	to.port = packet.destination_port;
	to.protocol = packet.protocol;
	__builtin_memcpy(to.address, packet.destination, sizeof(to.address));
	/* Packets that the node forwards have an ingress interface. */
	if (!skb->ingress_ifindex && is_management(&to, packet.source_port, selected.flags))
		return pass(PASSED_MANAGEMENT);
	if (flow->flags & (FLOW_TRANSPARENT | FLOW_WHOLE) || skb->gso_size || route.flags & ROUTE_OUTER_IPV6 ||
	    probes_by_loop(skb, &policy))
		return segment(skb);
	reason = obstacle(&packet, &route, false);
	if (reason != REASONS)
		return pass(reason);
	if (packet.padding_bytes)
		return pass(PASSED_MALFORMED);

	inner_bytes = packet.bytes;
	if (flow->flags & FLOW_TAGGED &&
	    !seal_headers(&sealing, &sending_keys(flow)->seal, ethernet + 1, (void *)(long)skb->data_end, inner_bytes))
		return pass(PASSED_MALFORMED);
	if (bpf_skb_adjust_room(skb, sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(shim), BPF_ADJ_ROOM_MAC,
				flags))
		return pass(PASSED_NO_ROOM);
	number = __sync_fetch_and_add(sequence, 1);
	probe(&packet, &policy, number, ROUTE_OUTER_IPV6, &route);
	fill_shim(&shim, flow, route.paths, policy.epoch, number);
	seal_shim(&sealing, &shim);
	account(&tx_flow_stats, index, inner_bytes);
	account(&tx_set_stats, route.paths, inner_bytes);
	for (__u32 path = 0; path < MAX_PATHS; path++) {
		struct tx_path *description;
		__u32 key = path; /* keeps the loop counter in a register, where the verifier tracks it */

		if (!(route.paths & (1 << path)))
			continue;
		description = bpf_map_lookup_elem(&tx_paths, &key);
		if (!description || description->family != AF_INET) {
			count(DROPPED_PATH_NOT_CONFIGURED);
			continue;
		}
		if (ifindex && bpf_clone_redirect(skb, ifindex, 0))
			count(DROPPED_CLONE_FAILED);
		if (!write_headers(skb, description, path, &shim, &sealing, packet.traffic_class, inner_bytes))
			return drop(DROPPED_NO_ROOM);
		account(&tx_path_stats, index * MAX_PATHS + path, inner_bytes);
		ifindex = description->ifindex;
	}
	if (!ifindex)
		return TC_ACT_SHOT; /* counted for every path */
	return bpf_redirect(ifindex, 0);
}

SEC("tcx/egress")
int replicate_local(struct __sk_buff *skb)
{
	return replicate_skb(skb);
}

/* At the XDP end of a loop: a packet that was not replicated there leaves by the device that it was
 * routed to, whose Ethernet header it still has.
 */
SEC("tcx/ingress")
int pass_looped(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	__u32 *device = bpf_map_lookup_elem(&loop_devices, &ifindex);

	if (!device)
		return TC_ACT_UNSPEC;
	skb->tc_index = LOOPED;
	return bpf_redirect(*device, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Deduplication of replicas at the egress edge: XDP on every path-facing device, and TC where packets
 * have no Ethernet header or XDP is refused (dedup_link.bpf.c). The inner packet of the first copy is passed to the
 * kernel's own forwarding; the other copies are dropped.
 */
#include "arrived.h"

#include "checksum.h"
#include "digest.h"
#include "path_tos.h"
#include "seal.h"
#include "select.h"
#include "transparent.h"
#include "window.h"

volatile const __u16 port = 14747;
volatile const __u32 transparent_within_ms = 1000;
volatile const __u32 max_age_us = 2000000; /* of a tagged packet */

/* For user space, see maps.h. */
volatile const enum verdict verdict_type = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rx_flow);
	__uint(max_entries, MAX_FLOWS);
} rx_flows SEC(".maps");

/* The rows of rx_flows whose packets filled the windows. Used only by user space, also across
 * restarts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FLOWS);
	__type(key, __u32);
	__type(value, struct rx_flow);
} rx_senders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rx_path);
	__uint(max_entries, MAX_PATHS);
} rx_paths SEC(".maps");

/* Index: flow. The destination of the last packet that the kernel got. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rx_destination);
	__uint(max_entries, MAX_FLOWS);
} rx_destinations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct window);
	__uint(max_entries, MAX_FLOWS);
} windows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct seen);
	__uint(max_entries, 1);
} seen SEC(".maps");

/* The node's firewall may drop echo requests on the replicas' port, unlike replicas. The agent answers
 * those that are authentic.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct seen_echoes);
	__uint(max_entries, 1);
} rx_echoes SEC(".maps");

/* The key of the fingerprints in `seen`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct siphash_key);
	__uint(max_entries, 1);
} fingerprint_key SEC(".maps");

/* Index: flow * MAX_PATHS + path. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct rx_stats);
	__uint(max_entries, MAX_FLOWS * MAX_PATHS);
} rx_stats SEC(".maps");

/* Index: CPU. The loader sizes it to the CPUs that are online; those that come later have no ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct arrivals);
	__uint(max_entries, 1);
} arrivals SEC(".maps");

static __always_inline void record(const struct arrival *arrival)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct arrivals *ring = bpf_map_lookup_elem(&arrivals, &cpu);

	if (!ring) {
		__u32 zero = 0;

		ring = bpf_map_lookup_elem(&arrivals, &zero);
		if (ring)
			__sync_fetch_and_add(&ring->overflowed, 1);
		return;
	}
	if (ring->written - *(volatile __u64 *)&ring->read >= ARRIVALS) {
		__sync_fetch_and_add(&ring->overflowed, 1);
		return;
	}
	ring->records[ring->written & (ARRIVALS - 1)] = *arrival;
	/* The record must be visible before its count: an exchange is a full barrier, an addition
	 * need not be.
	 */
	__sync_lock_test_and_set(&ring->written, ring->written + 1);
}

static __always_inline void account(struct rx_stats *stats, const struct arrival *arrival)
{
	record(arrival);
	stats->packets++;
	stats->bytes += arrival->inner_bytes;
	if (arrival->verdict == VERDICT_DUPLICATE) {
		stats->duplicates++;
		return;
	}
	stats->first++;
	if (arrival->verdict == VERDICT_LATE)
		stats->late++;
	else if (arrival->verdict == VERDICT_RESET)
		stats->reset++;
	else if (arrival->verdict == VERDICT_CONTENDED)
		stats->contended++;
}

/* A UDP datagram to our port that starts with a shim; not yet checked to be addressed to this node.
 */
struct replica {
	struct shim *shim;
	__u8 *local; /* destination address of the outer header */
	__u8 *remote; /* source address of the outer header */
	__u32 ip_bytes; /* of the outer packet, by its own length field */
	__u32 udp_bytes;
	__u32 link_bytes;  /* of the Ethernet header; 0 = there is none */
	__u32 outer_bytes; /* from the end of the Ethernet header to the inner packet */
	__u8 traffic_class;
	bool is_ipv6;
	bool is_fragment;
};

static __always_inline bool parse_outer_ip(struct cursor *cursor, __be16 protocol, struct replica *replica)
{
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = take(cursor, sizeof(*ip));

		if (!ip || ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return false;
		replica->is_ipv6 = false;
		replica->is_fragment = ip->frag_off & bpf_htons(IP_MF_OR_OFFSET);
		replica->traffic_class = ip->tos;
		replica->local = (__u8 *)&ip->daddr;
		replica->remote = (__u8 *)&ip->saddr;
		replica->ip_bytes = bpf_ntohs(ip->tot_len);
		replica->outer_bytes = sizeof(*ip) + sizeof(struct udphdr) + sizeof(struct shim);
		return !(ip->frag_off & bpf_htons(IP_OFFSET));
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = take(cursor, sizeof(*ip));

		if (!ip || ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
			return false;
		replica->is_ipv6 = true;
		replica->is_fragment = false;
		replica->traffic_class = ip->priority << 4 | ip->flow_lbl[0] >> 4;
		replica->local = (__u8 *)&ip->daddr;
		replica->remote = (__u8 *)&ip->saddr;
		replica->ip_bytes = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		replica->outer_bytes = sizeof(*ip) + sizeof(struct udphdr) + sizeof(struct shim);
		return true;
	}
	if (is_vlan(protocol))
		count(PASSED_VLAN);
	return false;
}

static __always_inline bool addressed_here(const struct replica *replica, const struct rx_path *path)
{
	const __u64 *got = WORDS(replica->local), *want = WORDS(path->local);

	if (replica->is_ipv6 != (path->family == AF_INET6))
		return false;
	if (!replica->is_ipv6)
		return *(__be32 *)replica->local == *(__be32 *)path->local;
	return got[0] == want[0] && got[1] == want[1];
}

static __always_inline bool is_echo(const struct cursor *cursor)
{
	const __u8 *first = cursor->at;

	return (void *)(first + 1) <= cursor->end && *first >> 4 == ECHO_VERSION;
}

static __always_inline bool addressed_to_node(const struct replica *replica)
{
	for (__u32 path = 0; path < MAX_PATHS; path++) {
		__u32 key = path;
		const struct rx_path *here = bpf_map_lookup_elem(&rx_paths, &key);

		if (here && here->family && addressed_here(replica, here))
			return true;
	}
	return false;
}

static __always_inline void note_echo(const struct cursor *cursor, const struct replica *replica)
{
	__u32 zero = 0, address_bytes = replica->is_ipv6 ? sizeof(struct in6_addr) : sizeof(__be32);
	struct seen_echoes *seen = bpf_map_lookup_elem(&rx_echoes, &zero);
	const __u8 *bytes = cursor->at;
	struct seen_echo *echo;

	if (!seen || (void *)(bytes + ECHO_BYTES) > cursor->end || bytes[1] != ECHO_REQUEST || !addressed_to_node(replica))
		return;
	echo = &seen->echoes[__sync_fetch_and_add(&seen->count, 1) & (SEEN_ECHOES - 1)];
	echo->family = replica->is_ipv6 ? AF_INET6 : AF_INET;
	for (__u32 i = 0; i < sizeof(echo->local); i++) {
		bool is_part = i < address_bytes;

		echo->local[i] = is_part ? replica->local[i] : 0;
		echo->remote[i] = is_part ? replica->remote[i] : 0;
	}
	__builtin_memcpy(echo->bytes, bytes, ECHO_BYTES);
}

static __always_inline bool parse_replica(struct cursor *cursor, __be16 protocol, struct replica *replica)
{
	struct udphdr *udp;

	if (!parse_outer_ip(cursor, protocol, replica))
		return false;
	udp = take(cursor, sizeof(*udp));
	if (!udp || udp->dest != bpf_htons(port))
		return false;
	replica->udp_bytes = bpf_ntohs(udp->len);
	if (replica->is_fragment) {
		count(PASSED_OUTER_FRAGMENT);
		return false;
	}
	if (is_echo(cursor)) {
		note_echo(cursor, replica);
		return false;
	}
	replica->shim = take(cursor, sizeof(struct shim));
	if (!replica->shim) {
		count(PASSED_MALFORMED);
		return false;
	}
	if (replica->shim->version_flags >> 4 != SHIM_VERSION) {
		count(PASSED_UNKNOWN_VERSION);
		return false;
	}
	return true;
}

static __always_inline __u32 inner_bytes(const struct replica *replica)
{
	return replica->udp_bytes - sizeof(struct udphdr) - sizeof(struct shim);
}

/* All lengths must agree, including the inner packet's own: malformed packets must not reach the
 * kernel.
 */
static __always_inline bool lengths_agree(const struct replica *replica, void *end)
{
	struct ipv6hdr *ip6 = (void *)(replica->shim + 1);
	struct iphdr *ip = (void *)(replica->shim + 1);
	__u32 bytes = inner_bytes(replica);

	if (replica->udp_bytes < sizeof(struct udphdr) + sizeof(struct shim) + sizeof(*ip))
		return false;
	if (replica->outer_bytes + bytes > replica->ip_bytes || (__u64)(end - (void *)ip) < bytes)
		return false;
	if ((void *)(ip + 1) > end)
		return false;
	if (ip->version == 4)
		return bpf_ntohs(ip->tot_len) == bytes;
	if ((void *)(ip6 + 1) > end || ip6->version != 6)
		return false;
	return bpf_ntohs(ip6->payload_len) + sizeof(*ip6) == bytes;
}

/* RFC 6040, section 4.2: an outer congestion mark is copied to an ECN-capable inner packet; false
 * if the packet must be dropped.
 */
static __always_inline bool combine_ecn(const struct replica *replica, void *end)
{
	struct iphdr *ip = (void *)(replica->shim + 1);

	if (likely((replica->traffic_class & ECN_MASK) != ECN_CE))
		return true;
	if ((void *)(ip + 1) > end)
		return false;
	if (ip->version == 4) {
		if (!(ip->tos & ECN_MASK))
			return false;
		replace_tos(ip, ip->tos | ECN_CE);
	} else {
		struct ipv6hdr *ip6 = (void *)ip;

		if (!(ip6->flow_lbl[0] & (ECN_MASK << 4)))
			return false;
		ip6->flow_lbl[0] |= ECN_CE << 4;
	}
	return true;
}

/* Returns whether the tag is valid. The caller has checked the lengths. */
static __always_inline bool tag_valid(CONTEXT *ctx, const struct replica *replica, const struct rx_flow *flow,
				      void *end)
{
	const struct shim *shim = replica->shim;
	__u32 slot = shim->version_flags & SHIM_KEY_SLOT ? 1 : 0;
	const __u32 *first_word = WORDS(shim);
	const __u64 *tag = WORDS(shim->tag);
	const struct shim_keys *keys = &flow->keys[slot];
	struct sealing sealing;

	if (!(shim->version_flags & SHIM_TAGGED) || !(flow->keys_valid & (1 << slot)))
		return false;
	if (!seal_headers(&sealing, &keys->seal, shim + 1, end, inner_bytes(replica)))
		return false;
	if (shim->version_flags & SHIM_WHOLE)
		seal_digest(&sealing, digest_of_packet(ctx, replica->link_bytes + replica->outer_bytes,
						       inner_bytes(replica), keys->digest.k0, keys->digest.k1));
	seal_shim(&sealing, shim);
	return *tag == seal_copy(&sealing, *first_word);
}

static __always_inline int drop(enum reason reason)
{
	count(reason);
	return XDP_DROP;
}

/* A copy that the kernel will not take must not be the first one. */
static __always_inline int pass_foreign(void)
{
	count(PASSED_FOREIGN_MAC);
	return XDP_PASS;
}

/* Leaves the inner packet. */
static __always_inline int decapsulate(CONTEXT *ctx, const struct replica *replica)
{
	bool inner_is_ipv6 = *(__u8 *)(replica->shim + 1) >> 4 == 6;
	enum reason reason = leave_inner(ctx, replica->link_bytes, replica->outer_bytes, inner_is_ipv6);

	return reason == REASONS ? XDP_PASS : drop(reason);
}

static __always_inline void note_destination(__u32 flow, void *header, void *end)
{
	struct rx_destination *last = bpf_map_lookup_elem(&rx_destinations, &flow);
	struct iphdr *ip = header;
	struct ipv6hdr *ip6 = header;

	if (!last || (void *)(ip + 1) > end)
		return;
	if (ip->version == 4) {
		last->family = AF_INET;
		__builtin_memcpy(last->address, &ip->daddr, sizeof(ip->daddr));
	} else if ((void *)(ip6 + 1) <= end) {
		last->family = AF_INET6;
		__builtin_memcpy(last->address, &ip6->daddr, sizeof(ip6->daddr));
	}
}

/* Handles a packet that is not an encapsulated replica: a copy of a transparent flow, or unrelated
 * traffic.
 */
static __always_inline int dedup_transparent(CONTEXT *ctx, void *header, void *end, __be16 protocol)
{
	struct cursor cursor = { header, end };
	struct iphdr *ip = header;
	struct arrival arrival = {};
	struct packet packet;
	struct rx_stats *stats;
	struct seen *table;
	__u32 index, zero = 0;
	const struct siphash_key *key;
	int flow;

	if (protocol != bpf_htons(ETH_P_IP) || (void *)(ip + 1) > end || !names_path(ip->tos) || !ip->id)
		return XDP_PASS;
	if (parse_ip(&cursor, protocol, remaining(&cursor), &packet) != PARSED || packet.is_fragment)
		return XDP_PASS;
	flow = select_flow(&packet);
	table = bpf_map_lookup_elem(&seen, &zero);
	key = bpf_map_lookup_elem(&fingerprint_key, &zero);
	if (flow < 0 || !table || !key)
		return XDP_PASS;
	if (!is_for_node(ctx))
		return pass_foreign();
	arrival.at_ns = bpf_ktime_get_ns();
	arrival.sequence = fingerprint(key, ip, end, packet.bytes - sizeof(*ip));
	arrival.flow = flow;
	arrival.inner_bytes = packet.bytes;
	arrival.path = path_of_tos(ip->tos);
	arrival.verdict = observe_fingerprint(table, arrival.sequence, arrival.path, arrival.at_ns,
					      transparent_within_ms);
	index = arrival.flow * MAX_PATHS + arrival.path;
	stats = bpf_map_lookup_elem(&rx_stats, &index);
	if (stats)
		account(stats, &arrival);
	if (arrival.verdict == VERDICT_DUPLICATE)
		return XDP_DROP;
	note_destination(arrival.flow, ip, end);
	replace_tos(ip, ip->tos & ECN_MASK);
	return XDP_PASS;
}

/* Returns XDP_PASS or XDP_DROP. */
static __always_inline int deduplicate(CONTEXT *ctx, __u32 link_bytes)
{
	struct cursor cursor;
	struct replica replica = { .link_bytes = link_bytes };
	struct arrival arrival = {};
	struct rx_stats *stats;
	struct window *window;
	struct rx_flow *flow;
	struct rx_path *path;
	__u32 flow_index, path_index, stats_index;
	__be16 protocol;
	void *header;

	if (!open_arrived(ctx, link_bytes, &cursor, &protocol))
		return XDP_PASS;
	header = cursor.at;
	if (!parse_replica(&cursor, protocol, &replica))
		return dedup_transparent(ctx, header, cursor.end, protocol);

	path_index = replica.shim->path;
	flow_index = bpf_ntohs(replica.shim->flow_be);
	path = bpf_map_lookup_elem(&rx_paths, &path_index);
	if (!path || !path->family || !addressed_here(&replica, path)) {
		/* It may be on its way to another node. */
		count(PASSED_NOT_ADDRESSED);
		return XDP_PASS;
	}
	if (!is_for_node(ctx))
		return pass_foreign();
	flow = bpf_map_lookup_elem(&rx_flows, &flow_index);
	if (!flow || !flow->configured)
		return drop(DROPPED_UNKNOWN_FLOW);
	stats_index = flow_index * MAX_PATHS + path_index;
	stats = bpf_map_lookup_elem(&rx_stats, &stats_index);
	window = bpf_map_lookup_elem(&windows, &flow_index);
	if (!stats || !window)
		return drop(DROPPED_UNKNOWN_FLOW);
	if (!lengths_agree(&replica, cursor.end))
		return drop(DROPPED_MALFORMED);
	if (flow->keys_valid && !tag_valid(ctx, &replica, flow, cursor.end)) {
		stats->tag_failures++;
		return drop(DROPPED_TAG);
	}
	if (flow->keys_valid && flow->demands_whole && !(replica.shim->version_flags & SHIM_WHOLE)) {
		stats->tag_failures++;
		return drop(DROPPED_PARTIAL_TAG);
	}
	if (!combine_ecn(&replica, cursor.end))
		return drop(DROPPED_ECN);

	arrival.at_ns = bpf_ktime_get_ns();
	arrival.sequence = bpf_be64_to_cpu(replica.shim->sequence_be);
	arrival.sent_us = bpf_ntohl(replica.shim->sent_low_be);
	arrival.flow = flow_index;
	arrival.inner_bytes = inner_bytes(&replica);
	arrival.path = path_index;
	arrival.paths = replica.shim->paths;
	arrival.epoch = replica.shim->epoch;
	if (flow->keys_valid) {
		__u64 sent_us = (__u64)bpf_ntohs(replica.shim->sent_high_be) << 32 | arrival.sent_us;

		arrival.verdict = observe_tagged(window, arrival.sequence, sent_us, arrival.at_ns / 1000, max_age_us);
	} else {
		arrival.verdict = observe(window, arrival.sequence);
	}
	/* Anyone who has captured these packets may send them again: they are no evidence about the
	 * paths.
	 */
	if (arrival.verdict == VERDICT_OUTDATED) {
		stats->outdated++;
		return drop(DROPPED_OUTDATED);
	}
	if (arrival.verdict == VERDICT_EXPIRED) {
		stats->expired++;
		return drop(DROPPED_EXPIRED);
	}
	account(stats, &arrival);
	if (arrival.verdict == VERDICT_DUPLICATE)
		return XDP_DROP;
	note_destination(flow_index, replica.shim + 1, cursor.end);
	return decapsulate(ctx, &replica);
}

#ifndef AT_TC
SEC("xdp")
int dedup(struct xdp_md *ctx)
{
	return deduplicate(ctx, sizeof(struct ethhdr));
}
#endif

char LICENSE[] SEC("license") = "Dual BSD/GPL";

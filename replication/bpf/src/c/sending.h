/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Parts that the XDP and the TC program for replication share: flows, policies, paths, and the
 * headers of a replica. The TC object uses the maps of the XDP object, so both see the same tables.
 */
#ifndef HAWSER_SENDING_H
#define HAWSER_SENDING_H

#include "parse.h"

#include "checksum.h"
#include "seal.h"
#include "select.h"
#include "tx_paths.h"

/* Added to the time since boot, so that send times never go back when clocks are set. */
volatile const __u64 clock_offset_us = 0;

/* Source and destination UDP port of replicas. */
volatile const __u16 port = 14747;

/* For user space, see maps.h. */
volatile const enum limit limit_type = 0;
volatile const enum flow_flag flow_flag_type = 0;
volatile const enum route_flag route_flag_type = 0;
volatile const enum path_flag path_flag_type = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct tx_flow);
	__uint(max_entries, MAX_FLOWS);
} tx_flows SEC(".maps");

/* The sequence number of a flow's next packet. A session starts above the numbers of earlier ones.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, MAX_FLOWS);
} sequences SEC(".maps");

/* Mapped into user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct policy);
	__uint(max_entries, MAX_FLOWS);
} policies SEC(".maps");

/* Index: policy code. Mapped into user space, which writes a route with one store. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct route);
	__uint(max_entries, 256);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct tx_stats);
	__uint(max_entries, MAX_FLOWS);
} tx_flow_stats SEC(".maps");

/* Index: flow * MAX_PATHS + path. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct tx_stats);
	__uint(max_entries, MAX_FLOWS * MAX_PATHS);
} tx_path_stats SEC(".maps");

/* Index: the path set. Counts packets before the broadcast, which skips devices that are down
 * without any program noticing.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct tx_stats);
	__uint(max_entries, 256);
} tx_set_stats SEC(".maps");

/* Index: path * REASONS + reason. Copies that did not leave. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, MAX_PATHS * REASONS);
} lost_copies SEC(".maps");

/* Counts a copy that does not leave by its path, among all reasons and for the path. */
static __always_inline void count_lost_copy(__u32 path, enum reason reason)
{
	__u32 index = path * REASONS + reason;
	__u64 *counter = bpf_map_lookup_elem(&lost_copies, &index);

	count(reason);
	if (counter)
		(*counter)++;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct missed);
	__uint(max_entries, 1);
} tx_missed SEC(".maps");

/* Counts a packet to a destination of flows that matches none of them. */
static __always_inline void note_missed(const struct packet *packet)
{
	__u32 zero = 0;
	struct missed *missed = bpf_map_lookup_elem(&tx_missed, &zero);

	if (!missed)
		return;
	__sync_fetch_and_add(&missed->packets, 1);
	__builtin_memcpy(missed->destination, packet->destination, sizeof(missed->destination));
	missed->destination_port = packet->destination_port;
	missed->protocol = packet->protocol;
}

/* Reading the clock takes as long as the rest of the first program, so it is read once per tick. */
struct send_clock {
	__u64 tick;
	__u64 sent_us;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct send_clock);
	__uint(max_entries, 1);
} send_clock SEC(".maps");

static __always_inline void account(void *map, __u32 index, __u32 bytes)
{
	struct tx_stats *stats = bpf_map_lookup_elem(map, &index);

	if (stats) {
		stats->packets++;
		stats->bytes += bytes;
	}
}

static __always_inline bool replicates(const struct policy *policy)
{
	return policy->code != 0x00 && policy->code != 0xff;
}

static __always_inline bool read_policy(__u32 flow, struct policy *policy)
{
	struct policy *current_policy = bpf_map_lookup_elem(&policies, &flow);

	if (!current_policy)
		return false;
	*(__u64 *)policy = *(volatile __u64 *)current_policy;
	return true;
}

static __always_inline bool read_route(__u32 code, struct route *route)
{
	struct route *current_route = bpf_map_lookup_elem(&routes, &code);

	if (!current_route)
		return false;
	*(__u64 *)route = *(volatile __u64 *)current_route;
	return true;
}

/* Returns whether copies of a flow's packets are clones, which the TC programs make. They then
 * replicate all packets of the flow, also those that are not probes, because the program that
 * replicates assigns the sequence numbers.
 */
static __always_inline bool is_cloned(const struct policy *policy, const struct route *route)
{
	struct route probed;

	if (route->flags & ROUTE_CLONED)
		return true;
	return policy->probe_shift && read_route(policy->code | policy->probes, &probed) && probed.flags & ROUTE_CLONED;
}

static __always_inline bool is_replica(const struct packet *packet)
{
	return packet->protocol == IPPROTO_UDP && packet->destination_port == port && packet->source_port == port;
}

/* Returns why a packet of a replicated flow cannot be replicated; REASONS if it can. */
static __always_inline enum reason obstacle(const struct packet *packet, const struct route *route, bool transparent)
{
	if (!route->inner_mtu_bytes)
		return PASSED_NO_PATH;
	if (packet->bytes > (transparent ? route->path_mtu_bytes : route->inner_mtu_bytes))
		return PASSED_OVERSIZE;
	return REASONS;
}

/* The receiver identifies a transparent replica by its IPv4 ID, which may be zero in atomic
 * datagrams (RFC 6864).
 */
static __always_inline bool identifiable(const struct packet *packet, const struct iphdr *ip)
{
	return !packet->is_ipv6 && !packet->is_fragment && ip->id != 0;
}

/* Returns false if the header is incomplete, which parse_ip has ruled out but the verifier does not
 * track.
 */
static __always_inline bool forward_once(void *header, void *end, bool is_ipv6)
{
	if (is_ipv6) {
		struct ipv6hdr *ip = header;

		if ((void *)(ip + 1) > end)
			return false;
		ip->hop_limit--;
	} else {
		struct iphdr *ip = header;

		if ((void *)(ip + 1) > end)
			return false;
		decrement_ttl(ip);
	}
	return true;
}

/* Sends one packet in 2^probe_shift on the probed paths too, by replacing the policy's route. Does
 * nothing if the packet is too large for one of these paths or their route has a flag in
 * `excluded_flags`.
 */
static __always_inline void probe(const struct packet *packet, const struct policy *policy, __u64 sequence,
				  __u8 excluded_flags, struct route *route)
{
	struct route probed;

	if (!policy->probe_shift || sequence & ((1ULL << (policy->probe_shift & PROBE_SHIFT_MAX)) - 1))
		return;
	if (!read_route(policy->code | policy->probes, &probed))
		return;
	if (packet->bytes <= probed.inner_mtu_bytes && !(probed.flags & excluded_flags))
		*route = probed;
}

/* Returns the send time of a packet: the time at which this CPU processed the first packet since the
 * kernel's last tick.
 */
static __always_inline __u64 send_time_us(void)
{
	__u32 zero = 0;
	struct send_clock *clock = bpf_map_lookup_elem(&send_clock, &zero);
	__u64 tick = bpf_jiffies64();

	if (!clock)
		return 0;
	if (unlikely(clock->tick != tick)) {
		clock->sent_us = bpf_ktime_get_boot_ns() / 1000 + clock_offset_us;
		barrier();
		clock->tick = tick;
	}
	return clock->sent_us;
}

/* Fills the part of the shim that is the same in all copies. */
static __always_inline void fill_shim(struct shim *shim, const struct tx_flow *flow, __u8 paths, __u32 epoch,
				      __u64 sequence)
{
	__u64 sent_us = send_time_us();
	__u8 flags = 0;

	if (flow->flags & FLOW_TAGGED)
		flags = SHIM_TAGGED | (flow->flags & FLOW_KEY_SLOT ? SHIM_KEY_SLOT : 0) |
			(flow->flags & FLOW_WHOLE ? SHIM_WHOLE : 0);
	shim->version_flags = SHIM_VERSION << 4 | flags;
	shim->path = 0;
	shim->paths = paths;
	shim->epoch = epoch;
	shim->flow_be = bpf_htons(flow->flow);
	shim->sent_high_be = bpf_htons((__u16)(sent_us >> 32));
	shim->sequence_be = bpf_cpu_to_be64(sequence);
	shim->sent_low_be = bpf_htonl((__u32)sent_us);
	__builtin_memset(shim->tag, 0, sizeof(shim->tag));
}

static __always_inline void write_ethernet(struct ethhdr *ethernet, const struct tx_path *path, __be16 protocol)
{
	__builtin_memcpy(WORDS(ethernet), &path->macs, sizeof(path->macs));
	ethernet->h_proto = protocol;
}

/* Headers are assembled in registers: reading a word soon after writing its bytes separately stalls
 * the processor.
 */

static __always_inline void write_ipv4(struct iphdr *ip, const struct tx_path *path, __u8 tos, __u32 udp_bytes)
{
	const __u32 *local = WORDS(path->local), *remote = WORDS(path->remote);
	__u32 *words = WORDS(ip);
	__u32 version_to_length = bpf_htonl(4u << 28 | 5u << 24 | tos << 16 | (__u16)(sizeof(*ip) + udp_bytes));
	__u32 identification_to_offset = bpf_htonl(IP_DF);
	__u32 ttl_to_checksum = bpf_htonl(64u << 24 | IPPROTO_UDP << 16);
	__u16 check = ~fold((__u64)version_to_length + identification_to_offset + ttl_to_checksum + *local + *remote);

	words[0] = version_to_length;
	words[1] = identification_to_offset;
	words[2] = ttl_to_checksum | (__u32)check << 16;
	words[3] = *local;
	words[4] = *remote;
}

static __always_inline void write_ipv6(struct ipv6hdr *ip, const struct tx_path *path, __u8 traffic_class,
				       __u32 udp_bytes)
{
	__u32 *words = WORDS(ip);

	words[0] = bpf_htonl(6u << 28 | (__u32)traffic_class << 20);
	words[1] = bpf_htonl(udp_bytes << 16 | IPPROTO_UDP << 8 | 64);
	__builtin_memcpy(&words[2], WORDS(path->local), sizeof(path->local));
	__builtin_memcpy(&words[6], WORDS(path->remote), sizeof(path->remote));
}

static __always_inline void write_udp(struct udphdr *udp, const struct tx_path *path, __u32 udp_bytes, __u16 check)
{
	__u32 *words = WORDS(udp);

	words[0] = path->port_be | (__u32)path->port_be << 16;
	words[1] = bpf_htons(udp_bytes) | (__u32)check << 16;
}

/* Returns the UDP checksum over IPv6 of the datagram that begins with `shim`, whose bytes after the shim
 * have the folded sum `inner_sum`.
 */
static __always_inline __u16 udp_checksum(const struct tx_path *path, __u32 udp_bytes, const struct shim *shim,
					  __u32 inner_sum)
{
	__u64 sum = bpf_htons(IPPROTO_UDP) + 2 * (__u64)bpf_htons(udp_bytes) + 2 * (__u64)path->port_be;
	__u16 check;

	if (path->flags & PATH_UNCHECKED)
		return 0;
	sum = sum_words(sum + inner_sum, shim, sizeof(*shim) / 4);
	sum = sum_words(sum, WORDS(path->local), sizeof(path->local) / 4);
	sum = sum_words(sum, WORDS(path->remote), sizeof(path->remote) / 4);
	check = ~fold(sum);
	return check ?: 0xffff;
}

#define SHIM_PATH (0xffU << 8) /* in the shim's first four bytes */
_Static_assert(__builtin_offsetof(struct shim, path) == 1, "the mask of the path");

/* Returns the key that a tagged flow's shims are sealed with. */
static __always_inline const struct shim_keys *sending_keys(const struct tx_flow *flow)
{
	return &flow->keys[flow->flags & FLOW_KEY_SLOT ? 1 : 0];
}

/* Writes the path into the shim and tags it. */
static __always_inline void finish_shim(struct shim *shim, const struct sealing *sealing, __u32 path)
{
	__u32 *words = WORDS(shim);
	__u32 first = (words[0] & ~SHIM_PATH) | path << 8;

	words[0] = first;
	*(__u64 *)WORDS(shim->tag) = first & SHIM_TAGGED ? seal_copy(sealing, first) : 0;
}

#endif

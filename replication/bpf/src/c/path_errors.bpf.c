/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Hears the ICMP errors about copies that are too big for a hop of their path: TCX at the ingress of
 * the devices of paths, before the host's firewall, which knows no connection of the copies and would
 * drop the errors. The kernel still handles every packet.
 */
#include "parse.h"

#include "path_errors.h"
#include "tx_paths.h"

#include <linux/pkt_cls.h>

/* UDP port of replicas. */
volatile const __u16 port = 14747;

/* For user space, see maps.h. */
volatile const struct path_error path_error_type = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} path_errors SEC(".maps");

/* Minimum time between two records of a path: anyone may forge errors. When a true one is left out,
 * a later copy causes another.
 */
#define ERRORS_EVERY_NS 10000000ULL

static __u64 recorded_ns[MAX_PATHS];

#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMPV6_PACKET_TOO_BIG 2

/* The first eight bytes of an ICMP error of either IP version. */
struct icmp_error {
	__u8 type;
	__u8 code;
	__u16 check;
	union {
		struct {
			__u16 unused;
			__be16 mtu_be;
		} v4;
		__be32 v6_mtu_be;
	};
};

/* The outer headers that an error quotes. */
struct quoted {
	__u8 local[16];
	__u8 remote[16];
	__u16 family;
	struct udphdr udp;
};

/* Devices may lack an Ethernet header, so offsets are relative to the IP header. */
static __always_inline bool load(struct __sk_buff *skb, __u32 offset, void *to, __u32 bytes)
{
	return !bpf_skb_load_bytes_relative(skb, offset, to, bytes, BPF_HDR_START_NET);
}

/* Returns the offset behind the quoted headers; 0 if the packet is not such an error. */
static __always_inline __u32 read_error_v4(struct __sk_buff *skb, struct quoted *quoted, __u32 *mtu_bytes)
{
	struct icmp_error error;
	struct iphdr ip;
	__u32 offset;

	if (!load(skb, 0, &ip, sizeof(ip)) || ip.protocol != IPPROTO_ICMP || ip.frag_off & bpf_htons(IP_MF_OR_OFFSET))
		return 0;
	offset = ip.ihl * 4;
	if (!load(skb, offset, &error, sizeof(error)) || error.type != ICMP_UNREACHABLE ||
	    error.code != ICMP_FRAGMENTATION_NEEDED)
		return 0;
	offset += sizeof(error);
	if (!load(skb, offset, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl != 5 || ip.protocol != IPPROTO_UDP)
		return 0;
	offset += sizeof(ip);
	if (!load(skb, offset, &quoted->udp, sizeof(quoted->udp)))
		return 0;
	quoted->family = AF_INET;
	__builtin_memcpy(quoted->local, &ip.saddr, 4);
	__builtin_memcpy(quoted->remote, &ip.daddr, 4);
	*mtu_bytes = bpf_ntohs(error.v4.mtu_be);
	return offset + sizeof(quoted->udp);
}

static __always_inline __u32 read_error_v6(struct __sk_buff *skb, struct quoted *quoted, __u32 *mtu_bytes)
{
	__u32 offset = sizeof(struct ipv6hdr);
	struct icmp_error error;
	struct ipv6hdr ip;

	if (!load(skb, 0, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_ICMPV6)
		return 0;
	if (!load(skb, offset, &error, sizeof(error)) || error.type != ICMPV6_PACKET_TOO_BIG)
		return 0;
	offset += sizeof(error);
	if (!load(skb, offset, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_UDP)
		return 0;
	offset += sizeof(ip);
	if (!load(skb, offset, &quoted->udp, sizeof(quoted->udp)))
		return 0;
	quoted->family = AF_INET6;
	__builtin_memcpy(quoted->local, &ip.saddr, 16);
	__builtin_memcpy(quoted->remote, &ip.daddr, 16);
	*mtu_bytes = bpf_ntohl(error.v6_mtu_be);
	return offset + sizeof(quoted->udp);
}

/* Returns the path that a quoted packet was sent on; MAX_PATHS if it is none of ours. */
static __always_inline __u32 path_of(const struct quoted *quoted)
{
	const __u64 *local = (const void *)quoted->local, *remote = (const void *)quoted->remote;

	if (quoted->udp.source != bpf_htons(port) || quoted->udp.dest != bpf_htons(port))
		return MAX_PATHS;
	for (__u32 index = 0; index < MAX_PATHS; index++) {
		__u32 key = index;
		const struct tx_path *path = bpf_map_lookup_elem(&tx_paths, &key);
		const __u64 *own, *other;

		if (!path || path->family != quoted->family)
			continue;
		own = WORDS(path->local);
		other = WORDS(path->remote);
		if (own[0] == local[0] && own[1] == local[1] && other[0] == remote[0] && other[1] == remote[1])
			return index;
	}
	return MAX_PATHS;
}

static __always_inline bool is_due(__u32 path)
{
	__u64 now_ns = bpf_ktime_get_ns();
	__u64 *last_ns = &recorded_ns[path & (MAX_PATHS - 1)];

	if (now_ns - *last_ns < ERRORS_EVERY_NS)
		return false;
	*last_ns = now_ns;
	return true;
}

SEC("tcx/ingress")
int watch_path_errors(struct __sk_buff *skb)
{
	struct path_error error = {};
	struct quoted quoted __attribute__((aligned(8))) = {};
	__u32 offset = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		offset = read_error_v4(skb, &quoted, &error.mtu_bytes);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		offset = read_error_v6(skb, &quoted, &error.mtu_bytes);
	if (!offset)
		return TC_ACT_UNSPEC;
	error.path = path_of(&quoted);
	if (error.path == MAX_PATHS)
		return TC_ACT_UNSPEC;
	if (!is_due(error.path))
		return TC_ACT_UNSPEC;
	if (load(skb, offset, error.quoted, sizeof(error.quoted)))
		error.has_shim = 1;
	bpf_ringbuf_output(&path_errors, &error, sizeof(error), 0);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copies that are clones: the headers of a path are written, the packet is cloned to the path's
 * device, and the headers are overwritten with those of the next path. The kernel copies the headers
 * of a cloned packet before it returns, so each clone keeps its own.
 */
#ifndef HAWSER_CLONING_H
#define HAWSER_CLONING_H

#include "path_tos.h"
#include "sending.h"

#include <linux/pkt_cls.h>

#define OUTER_V4 (sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(struct shim))
#define OUTER_V6 (sizeof(struct ipv6hdr) + sizeof(struct udphdr) + sizeof(struct shim))

/* Since Linux 6.3, in linux/bpf.h. */
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)

/* The copy that was written last and is still in the packet. */
struct waiting {
	__u32 ifindex; /* of its device; 0 = there is none */
	__u32 path;
};

/* The parts that the copies of a packet share. */
struct copies {
	__u32 flow; /* the sender's table index */
	struct shim shim;
	struct sealing sealing;
	__u32 inner_bytes;
	__u32 inner_sum; /* of the inner packet, for the UDP checksum over IPv6 */
	struct waiting waiting;
	__u8 traffic_class;
};
_Static_assert((__builtin_offsetof(struct copies, shim) + SEALED_LAST) % 8 == 0, "seal_shim reads whole words");

/* Overwrites [Ethernet | outer IPv4 | UDP | shim] at the start of the packet for a path; false if
 * the packet is too short.
 */
static __always_inline bool write_copy_ipv4(struct __sk_buff *skb, const struct copies *copies,
					    const struct tx_path *path, __u32 index)
{
	struct ethhdr *ethernet = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct shim *shim = (void *)(udp + 1);
	__u32 udp_bytes = sizeof(*udp) + sizeof(*shim) + copies->inner_bytes;

	if ((void *)(shim + 1) > (void *)(long)skb->data_end)
		return false;
	write_ethernet(ethernet, path, bpf_htons(ETH_P_IP));
	write_ipv4(ip, path, copies->traffic_class, udp_bytes);
	write_udp(udp, path, udp_bytes, 0);
	*shim = copies->shim;
	finish_shim(shim, &copies->sealing, index);
	return true;
}

/* As write_copy_ipv4, over IPv6. */
static __always_inline bool write_copy_ipv6(struct __sk_buff *skb, const struct copies *copies,
					    const struct tx_path *path, __u32 index)
{
	struct ethhdr *ethernet = (void *)(long)skb->data;
	struct ipv6hdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct shim *shim = (void *)(udp + 1);
	__u32 udp_bytes = sizeof(*udp) + sizeof(*shim) + copies->inner_bytes;

	if ((void *)(shim + 1) > (void *)(long)skb->data_end)
		return false;
	*shim = copies->shim;
	finish_shim(shim, &copies->sealing, index);
	write_ethernet(ethernet, path, bpf_htons(ETH_P_IPV6));
	write_ipv6(ip, path, copies->traffic_class, udp_bytes);
	write_udp(udp, path, udp_bytes, udp_checksum(path, udp_bytes, shim, copies->inner_sum));
	return true;
}

/* Sends a clone of the copy that waits in the packet. device_drops.bpf.c counts those that a queue drops. */
static __always_inline void flush(struct __sk_buff *skb, struct waiting *waiting)
{
	if (waiting->ifindex && bpf_clone_redirect(skb, waiting->ifindex, 0) < 0)
		count_lost_copy(waiting->path, DROPPED_CLONE_FAILED);
	waiting->ifindex = 0;
}

/* Sends the packet itself as the last copy, so that a full queue slows a local sender down. */
static __always_inline int send_last(const struct waiting *waiting)
{
	return waiting->ifindex ? bpf_redirect(waiting->ifindex, 0) : TC_ACT_SHOT; /* counted for every path */
}

/* The functions below are global: the verifier checks each once, separately from its callers. */

/* Makes the copies on `paths`, which have outer headers of one address family. The packet has room for
 * these. The last copy waits in the packet.
 */
__noinline int make_copies(struct __sk_buff *skb, struct copies *copies, __u32 paths, __u16 family)
{
	if (!copies)
		return 0;
	for (__u32 path = 0; path < MAX_PATHS; path++) {
		struct tx_path *description;
		__u32 key = path; /* keeps the loop counter in a register, where the verifier tracks it */

		if (!(paths & (1 << path)))
			continue;
		description = bpf_map_lookup_elem(&tx_paths, &key);
		if (!description || description->family != family) {
			count_lost_copy(path, DROPPED_PATH_NOT_CONFIGURED);
			continue;
		}
		flush(skb, &copies->waiting);
		if (family == AF_INET6 ? !write_copy_ipv6(skb, copies, description, path)
				       : !write_copy_ipv4(skb, copies, description, path)) {
			count_lost_copy(path, DROPPED_NO_ROOM);
			continue;
		}
		account(&tx_path_stats, copies->flow * MAX_PATHS + path, copies->inner_bytes);
		copies->waiting.ifindex = description->ifindex;
		copies->waiting.path = path;
	}
	return 0;
}

/* As make_copies, for transparent copies: next hop and path index are rewritten. */
__noinline int make_transparent_copies(struct __sk_buff *skb, struct copies *copies, __u32 paths)
{
	if (!copies)
		return 0;
	for (__u32 path = 0; path < MAX_PATHS; path++) {
		struct tx_path *description;
		struct ethhdr *ethernet;
		struct iphdr *ip;
		__u32 key = path;

		if (!(paths & (1 << path)))
			continue;
		description = bpf_map_lookup_elem(&tx_paths, &key);
		if (!description || description->family != AF_INET) {
			count_lost_copy(path, DROPPED_PATH_NOT_CONFIGURED);
			continue;
		}
		flush(skb, &copies->waiting);
		ethernet = (void *)(long)skb->data;
		ip = (void *)(ethernet + 1);
		if ((void *)(ip + 1) > (void *)(long)skb->data_end) {
			count_lost_copy(path, DROPPED_MALFORMED);
			continue;
		}
		write_ethernet(ethernet, description, bpf_htons(ETH_P_IP));
		replace_tos(ip, path_tos(path, ip->tos));
		account(&tx_path_stats, copies->flow * MAX_PATHS + path, copies->inner_bytes);
		copies->waiting.ifindex = description->ifindex;
		copies->waiting.path = path;
	}
	return 0;
}

#endif

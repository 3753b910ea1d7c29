/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Counts copies that a path's device dropped because its queue was full or it was down. The sending
 * programs cannot see this, since a redirected frame or packet is sent after they have returned. It
 * uses the maps of the sending programs.
 */
#include "path_tos.h"
#include "sending.h"

#include <bpf/bpf_core_read.h>

/* The fields of kernel structures that are read here. Their offsets are resolved when the program
 * is loaded.
 */
struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
	unsigned char *head;
	__u16 network_header;
} __attribute__((preserve_access_index));

/* The reasons of queues, of which older kernels have only the first one. */
enum skb_drop_reason {
	SKB_DROP_REASON_QDISC_DROP,
	SKB_DROP_REASON_QDISC_OVERLIMIT,
	SKB_DROP_REASON_QDISC_CONGESTED,
	SKB_DROP_REASON_CAKE_FLOOD,
	SKB_DROP_REASON_FQ_BAND_LIMIT,
	SKB_DROP_REASON_FQ_HORIZON_LIMIT,
	SKB_DROP_REASON_FQ_FLOW_LIMIT,
	SKB_DROP_REASON_DUALPI2_STEP_DROP,
};

#define IS_REASON(number, name)                                                                                        \
	(bpf_core_enum_value_exists(enum skb_drop_reason, SKB_DROP_REASON_##name) &&                                   \
	 (number) == bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_##name))

/* Interface numbers are per network namespace. */
volatile const __u32 own_namespace = 0;

/* Key: ifindex. The loader inserts the watched devices. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 64);
} device_drops SEC(".maps");

/* Arguments: from, to, sent, drops, error. */
SEC("tp_btf/xdp_devmap_xmit")
int count_device_drops(__u64 *arguments)
{
	const struct net_device *to = (void *)arguments[1];
	int drops = arguments[3];
	__u64 *counter;
	__u32 ifindex;

	if (drops <= 0 || to->nd_net.net->ns.inum != own_namespace)
		return 0;
	ifindex = to->ifindex;
	counter = bpf_map_lookup_elem(&device_drops, &ifindex);
	if (counter)
		__sync_fetch_and_add(counter, drops);
	return 0;
}

/* Returns the index of the path whose copies leave by a device; MAX_PATHS if there is none. */
static __always_inline __u32 path_of_device(__u32 ifindex)
{
	for (__u32 path = 0; path < MAX_PATHS; path++) {
		__u32 key = path;
		const struct tx_path *description = bpf_map_lookup_elem(&tx_paths, &key);

		if (description && description->family && description->ifindex == ifindex)
			return path;
	}
	return MAX_PATHS;
}

static __always_inline bool is_copy(const struct sk_buff *skb, __u32 path)
{
	__u8 header[sizeof(struct ipv6hdr) + 4] __attribute__((aligned(8)));
	const __be16 *ports;
	__u8 protocol;

	if (bpf_probe_read_kernel(header, sizeof(header), skb->head + skb->network_header))
		return false;
	if (header[0] >> 4 == 6) {
		protocol = header[__builtin_offsetof(struct ipv6hdr, nexthdr)];
		ports = (void *)(header + sizeof(struct ipv6hdr));
	} else {
		__u8 tos = header[__builtin_offsetof(struct iphdr, tos)];

		if (names_path(tos) && path_of_tos(tos) == path)
			return true;
		protocol = header[__builtin_offsetof(struct iphdr, protocol)];
		ports = (void *)(header + sizeof(struct iphdr));
	}
	return protocol == IPPROTO_UDP && ports[0] == bpf_htons(port) && ports[1] == bpf_htons(port);
}

static __always_inline bool is_of_queue(__u32 reason)
{
	return IS_REASON(reason, QDISC_DROP) || IS_REASON(reason, QDISC_OVERLIMIT) ||
	       IS_REASON(reason, QDISC_CONGESTED) || IS_REASON(reason, CAKE_FLOOD) ||
	       IS_REASON(reason, FQ_BAND_LIMIT) || IS_REASON(reason, FQ_HORIZON_LIMIT) ||
	       IS_REASON(reason, FQ_FLOW_LIMIT) || IS_REASON(reason, DUALPI2_STEP_DROP);
}

/* Arguments: the packet, where it was dropped, the reason. */
SEC("tp_btf/kfree_skb")
int count_queue_drops(__u64 *arguments)
{
	const struct sk_buff *skb = (void *)arguments[0];
	__u32 path;
	const struct net_device *device;

	if (!is_of_queue(arguments[2]))
		return 0;
	device = skb->dev;
	if (!device || device->nd_net.net->ns.inum != own_namespace)
		return 0;
	path = path_of_device(device->ifindex);
	if (path < MAX_PATHS && is_copy(skb, path))
		count_lost_copy(path, DROPPED_BY_QUEUE);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

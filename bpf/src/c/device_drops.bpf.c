/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Counts copies that a path's device dropped because its queue was full or it was down. The sending
 * programs cannot see this, since a redirected frame is sent after they have returned.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

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

char LICENSE[] SEC("license") = "Dual BSD/GPL";

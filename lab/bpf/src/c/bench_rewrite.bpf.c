/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The relay of Pfeifer's thesis (chapter 3) on packets of media: the ingress sends an unaltered clone
 * with the number of a client to the device of each, the egress rewrites it for that client: link-layer
 * address, IP address and port, the name of the stream (here the alias), the packet number (in the
 * fields of epoch and hop, which nobody reads here). As there, nothing is authenticated, and each packet is
 * handled alone. The copy for user space and the registration of each packet are left out.
 */
#include "checksum.h"
#include "parse.h"
#include "../../../../media/bpf/src/c/relay_abi.h"
#include "skb.h"

#include <linux/pkt_cls.h>

#define REWRITE_CLIENTS 1024

volatile const __u32 device; /* that clients are behind */
volatile const __u16 port;   /* that packets arrive at, in host byte order */
__u32 clients;               /* by user space: how many there are */

/* How packets are rewritten for a client. */
struct rewrite_client {
	__u8 next_hop[6];
	__u8 source[6];
	__be32 local_be;
	__be32 remote_be;
	__be16 local_port_be;
	__be16 remote_port_be;
	__be32 alias_be;
	__u32 packet_number; /* of the last packet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rewrite_client);
	__uint(max_entries, REWRITE_CLIENTS);
} rewrite_clients SEC(".maps");

static long send_clone(__u32 client, struct __sk_buff **skb)
{
	if (client >= *(volatile __u32 *)&clients)
		return 1;
	(*skb)->mark = client + 1;
	bpf_clone_redirect(*skb, device, 0);
	return 0;
}

SEC("tcx/ingress")
int rewrite_ingress(struct __sk_buff *skb)
{
	struct cursor cursor = read_skb(skb, sizeof(struct udphdr) + sizeof(struct media));
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct packet packet;

	if (!ethernet || parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet) != PARSED)
		return TC_ACT_UNSPEC;
	if (packet.protocol != IPPROTO_UDP || packet.destination_port != port || skb->gso_segs > 1)
		return TC_ACT_UNSPEC;
	bpf_loop(REWRITE_CLIENTS, send_clone, &skb, 0);
	return TC_ACT_SHOT;
}

static __always_inline __u32 add_difference(__u32 sum, __u32 before, __u32 after)
{
	return bpf_csum_diff(&before, sizeof(before), &after, sizeof(after), sum);
}

#define UDP_CHECK (sizeof(struct ethhdr) + sizeof(struct iphdr) + offsetof(struct udphdr, check))

SEC("tcx/egress")
int rewrite_egress(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 number = skb->mark - 1, addresses, rest, packet_number_be, before;
	struct rewrite_client *client;
	struct ethhdr *ethernet = data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct media *media = (void *)(udp + 1);

	client = bpf_map_lookup_elem(&rewrite_clients, &number);
	if (!client || (void *)(media + 1) > end)
		return TC_ACT_UNSPEC;
	packet_number_be = bpf_htonl(__sync_fetch_and_add(&client->packet_number, 1));
	__builtin_memcpy(ethernet->h_dest, client->next_hop, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, client->source, ETH_ALEN);

	addresses = add_difference(0, ip->saddr, client->local_be);
	addresses = add_difference(addresses, ip->daddr, client->remote_be);
	ip->saddr = client->local_be;
	ip->daddr = client->remote_be;
	ip->check = 0;
	ip->check = ~fold(sum_words(0, ip, 5));

	before = (__u32)udp->dest << 16 | udp->source;
	rest = add_difference(0, before, (__u32)client->remote_port_be << 16 | client->local_port_be);
	udp->source = client->local_port_be;
	udp->dest = client->remote_port_be;
	rest = add_difference(rest, media->alias_be, client->alias_be);
	media->alias_be = client->alias_be;
	before = (__u32)media->hop_be << 16 | media->epoch_be;
	rest = add_difference(rest, before, packet_number_be);
	media->epoch_be = packet_number_be;
	media->hop_be = packet_number_be >> 16;

	bpf_l4_csum_replace(skb, UDP_CHECK, 0, addresses, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
	bpf_l4_csum_replace(skb, UDP_CHECK, 0, rest, BPF_F_MARK_MANGLED_0);
	skb->mark = 0;
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Sends a clone of a packet, or of a train of them, to each slot of a bitmap. All bytes above UDP
 * are the same for all subscribers, so only layers 2 to 4 are written. They are written into the
 * packet itself between two clones: the kernel gives it a header of its own after each, so a program
 * at the egress would save nothing.
 */
#ifndef HAWSER_FANOUT_H
#define HAWSER_FANOUT_H

#include "checksum.h"
#include "parse.h"
#include "relay_bits.h"
#include "relay_maps.h"

#define FANOUT_TTL 64

/* ECT(0): each subscriber's packets are a flow of their own, which leaves in bursts and may not have
 * the identifier of L4S. Marks on the way here concern the upstream only.
 */
#define FANOUT_TRAFFIC_CLASS 0x2

/* A packet and what is in its headers at the moment. */
struct fanout {
	struct __sk_buff *skb;
	__u64 now_ns;
	__u64 begun_ns;	       /* when the verdicts on its object were made */
	const __u64 *slots;    /* a bitmap of those that it goes to */
	__u64 word;	       /* what is left of the current word of the bitmap */
	__u32 base;	       /* the slot of its lowest bit */
	__u32 packets;	       /* of the train */
	__u32 bytes;	       /* of their datagrams */
	__u16 udp_bytes;       /* of the largest of them */
	__u16 family;	       /* of the headers */
	__u32 addresses_sum;
	__u32 ports_sum;
	__u32 header_sum;      /* of the IP header; that of IPv4 sums up to nothing */
	__u32 number;	       /* of the packet, for shares */
	__u8 level;	       /* of priority */
	__u8 priority;
	bool alone;	       /* it is one packet, which decodes alone */
	bool has_checksum;
	bool others;	       /* slots of the other family were passed over */
	bool is_broken;	       /* the headers could not be changed to the other family */
};

static __always_inline __u32 add_sums(__u32 a, __u32 b)
{
	a += b;
	return a + (a < b);
}

static __always_inline __u32 subtract_sums(__u32 a, __u32 b)
{
	return add_sums(a, ~b);
}

static __always_inline void write_macs(struct ethhdr *ethernet, const struct relay_slot *slot, __be16 protocol)
{
	__builtin_memcpy(ethernet->h_dest, &slot->next_hop, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, &slot->source, ETH_ALEN);
	ethernet->h_proto = protocol;
}

/* There are no options. A packet that is not fragmented needs no identification (RFC 6864). */
static __always_inline void write_v4(struct iphdr *ip, const struct relay_slot *slot, __be16 udp_bytes_be)
{
	*(__u8 *)ip = 0x45;
	ip->tos = FANOUT_TRAFFIC_CLASS;
	ip->tot_len = bpf_htons(bpf_ntohs(udp_bytes_be) + sizeof(*ip));
	ip->id = 0;
	ip->frag_off = bpf_htons(IP_DF);
	ip->ttl = FANOUT_TTL;
	ip->protocol = IPPROTO_UDP;
	ip->check = 0;
	__builtin_memcpy(&ip->saddr, slot->local, 4);
	__builtin_memcpy(&ip->daddr, slot->remote, 4);
	ip->check = ~fold(sum_words(0, ip, 5));
}

/* Returns the sum of the header. */
static __always_inline __u32 write_v6(struct ipv6hdr *ip, const struct relay_slot *slot, __be16 udp_bytes_be)
{
	*(__be32 *)ip = bpf_htonl(6u << 28 | FANOUT_TRAFFIC_CLASS << 20);
	ip->payload_len = udp_bytes_be;
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = FANOUT_TTL;
	__builtin_memcpy(&ip->saddr, slot->local, 16);
	__builtin_memcpy(&ip->daddr, slot->remote, 16);
	return add_sums(fold(sum_words(0, ip, 2)), slot->addresses_sum);
}

/* Writes the headers for a slot, whose family they already have room for. */
static __always_inline bool write_headers(struct fanout *fanout, const struct relay_slot *slot)
{
	__u32 addresses, ports, header, transport = sizeof(struct ethhdr);
	struct __sk_buff *skb = fanout->skb;
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *ethernet = (void *)(long)skb->data;
	struct udphdr *udp;

	if (fanout->family == AF_INET) {
		struct iphdr *ip = (void *)(ethernet + 1);

		udp = (void *)(ip + 1);
		transport += sizeof(*ip);
		if ((void *)(udp + 1) > end)
			return false;
		write_macs(ethernet, slot, bpf_htons(ETH_P_IP));
		write_v4(ip, slot, udp->len);
		header = 0;
	} else {
		struct ipv6hdr *ip = (void *)(ethernet + 1);

		udp = (void *)(ip + 1);
		transport += sizeof(*ip);
		if ((void *)(udp + 1) > end)
			return false;
		write_macs(ethernet, slot, bpf_htons(ETH_P_IPV6));
		header = write_v6(ip, slot, udp->len);
	}
	udp->source = slot->local_port_be;
	udp->dest = slot->remote_port_be;

	/* The kernel knows whether the checksum is complete. */
	addresses = subtract_sums(slot->addresses_sum, fanout->addresses_sum);
	ports = subtract_sums(slot->ports_sum, fanout->ports_sum);
	transport += offsetof(struct udphdr, check);
	if (bpf_l4_csum_replace(skb, transport, 0, addresses, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0) ||
	    bpf_l4_csum_replace(skb, transport, 0, ports, BPF_F_MARK_MANGLED_0))
		return false;
	/* A device may have summed up all bytes; otherwise this fails, and there is nothing to do. */
	if (header != fanout->header_sum)
		bpf_csum_update(skb, subtract_sums(header, fanout->header_sum));
	fanout->addresses_sum = slot->addresses_sum;
	fanout->ports_sum = slot->ports_sum;
	fanout->header_sum = header;
	return true;
}

static __always_inline void lose(struct relay_account *account, enum relay_loss loss, __u32 packets)
{
	__sync_fetch_and_add(&account->lost[loss], packets);
}

static __always_inline __u32 ip_header_bytes(const struct fanout *fanout)
{
	return fanout->family == AF_INET ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* Charges a slot for the packets, with the headers of each. */
static __always_inline void spend(struct relay_account *account, const struct fanout *fanout)
{
	__u64 bytes = fanout->bytes + fanout->packets * (sizeof(struct udphdr) + ip_header_bytes(fanout));

	__sync_fetch_and_add(&account->packets, fanout->packets);
	__sync_fetch_and_add(&account->buckets[RELAY_TOTAL].spent, bytes);
	__sync_fetch_and_add(&account->buckets[fanout->level & (RELAY_LEVELS - 1)].spent, bytes);
}

/* Returns whether the packet is not in the share of a slot. Each group begins with another number, so that also of
 * short objects a share is exact over some groups.
 */
static __always_inline bool is_thinned(const struct fanout *fanout, __u32 index)
{
	const struct relay_budget *budget = bpf_map_lookup_elem(&relay_budgets, &index);

	return budget && fanout->priority == READ_ONCE(budget->least_priority) &&
	       !is_in_share(fanout->number, READ_ONCE(budget->share));
}

static __always_inline void send_to(struct fanout *fanout, __u32 index)
{
	struct relay_account *account = bpf_map_lookup_elem(&relay_accounts, &index);
	const struct relay_slot *slot = bpf_map_lookup_elem(&relay_slots, &index);
	__u32 ip_bytes;

	if (!slot || !account || slot->since_ns > fanout->begun_ns)
		return;
	if (slot->family != fanout->family) {
		fanout->others = true;
		return;
	}
	if (READ_ONCE(slot->expires_ns) <= fanout->now_ns)
		return lose(account, LOSS_EXPIRED, fanout->packets);
	if (fanout->alone && is_thinned(fanout, index))
		return lose(account, LOSS_THINNED, fanout->packets);
	ip_bytes = fanout->udp_bytes + ip_header_bytes(fanout);
	if (!slot->ifindex)
		return lose(account, LOSS_NO_ROUTE, fanout->packets);
	if (ip_bytes > slot->mtu_bytes)
		return lose(account, LOSS_TOO_BIG, fanout->packets);
	if (!fanout->has_checksum && fanout->family == AF_INET6)
		return lose(account, LOSS_NO_CHECKSUM, fanout->packets);
	if (fanout->is_broken || !write_headers(fanout, slot) || bpf_clone_redirect(fanout->skb, slot->ifindex, 0))
		return lose(account, LOSS_DEVICE, fanout->packets);
	spend(account, fanout);
}

/* Sends to the lowest slot that is left of a word. */
static long send_next(__attribute__((unused)) __u32 step, struct fanout *fanout)
{
	__u64 word = fanout->word;

	if (!word)
		return 1;
	fanout->word = word & (word - 1);
	send_to(fanout, fanout->base + trailing_zeros(word));
	return 0;
}

static long send_word(__u32 index, struct fanout *fanout)
{
	if (index >= RELAY_WORDS)
		return 1;
	fanout->word = fanout->slots[index];
	fanout->base = index * 64;
	if (fanout->word)
		bpf_loop(64, send_next, fanout, 0);
	return 0;
}

static __always_inline void send_to_family(struct fanout *fanout)
{
	fanout->others = false;
	bpf_loop(RELAY_WORDS, send_word, fanout, 0);
}

/* Makes room for the headers of the other family; false if that fails. They have to be written then. */
static __always_inline bool change_family(struct fanout *fanout)
{
	struct __sk_buff *skb = fanout->skb;
	bool is_v4 = fanout->family == AF_INET;
	struct ethhdr *ethernet;

	fanout->family = is_v4 ? AF_INET6 : AF_INET;
	if (bpf_skb_change_proto(skb, bpf_htons(is_v4 ? ETH_P_IPV6 : ETH_P_IP), 0))
		return false;
	ethernet = (void *)(long)skb->data;
	if ((void *)(ethernet + 1) + sizeof(struct ipv6hdr) > (void *)(long)skb->data_end)
		return false;
	/* Of what the kernel has left there. */
	fanout->header_sum = fold(sum_words(0, ethernet + 1, is_v4 ? 10 : 5));
	return true;
}

/* Sends the packet to all slots: first to those of its own family, because the headers of the other
 * one have another length.
 */
static __always_inline void send_to_all(struct fanout *fanout)
{
	send_to_family(fanout);
	if (!fanout->others)
		return;
	fanout->is_broken = !change_family(fanout);
	send_to_family(fanout);
}

#endif

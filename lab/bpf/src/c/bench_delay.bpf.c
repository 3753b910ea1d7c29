/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Measures how long packets of media take through a relay: a program at the egress of the device that
 * sends them to it notes when each was sent, one at the egress of the relay's device counts how long ago
 * that was. So the time that packets wait for the relay counts. They are matched by frame, layer and
 * index, which no relay changes.
 */
#include "delays.h"
#include "../../../../media/bpf/src/c/relay_abi.h"

#include <linux/pkt_cls.h>

enum delay_packets {
	DELAY_OBJECT_PACKETS = 128,  /* of an object that are told apart */
	DELAY_PACKETS = 65536,       /* of all objects that are remembered */
};

/* When a packet was sent to the relay. */
struct arrived {
	__u64 frame;
	__u64 at_ns;
	__u16 index;
	__u16 last; /* the index of the last packet of its train */
	__u8 layer;
	__u8 reserved[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct arrived);
	__uint(max_entries, DELAY_PACKETS);
} delay_arrivals SEC(".maps");

__u64 apart[2];  /* by user space: the address of the subscriber that is counted apart, IPv4 mapped */
__u32 ends;      /* by user space: packets end where they leave */
__u64 unmatched; /* packets that left and had not arrived */

/* A train of media and where it goes. */
struct media_train {
	__u64 frame;
	__u16 index;
	__u16 packets;
	__u8 layer;
	bool is_apart;
};

/* Returns whether the packet is one of media, or a train of them. */
static __always_inline bool find_media(struct __sk_buff *skb, struct media_train *train)
{
	struct cursor cursor = read_skb(skb, sizeof(struct udphdr) + sizeof(struct media));
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	const struct media *media;
	const __u64 *to;
	struct packet packet;

	if (!ethernet || parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet) != PARSED)
		return false;
	if (packet.protocol != IPPROTO_UDP || packet.is_fragment || !take(&cursor, sizeof(struct udphdr) - 4))
		return false;
	media = take(&cursor, sizeof(*media));
	if (!media || media->version != MEDIA_VERSION)
		return false;
	to = WORDS(packet.destination);
	train->is_apart = to[0] == apart[0] && to[1] == apart[1];
	train->frame = (__u64)bpf_ntohl(media->group_be) << 32 | bpf_ntohl(media->object_be);
	train->index = bpf_ntohs(media->index_be);
	train->layer = media->layer;
	train->packets = skb->gso_segs ?: 1;
	return true;
}

static __always_inline struct arrived *arrival_of(const struct media_train *train, __u32 number)
{
	__u32 object = (train->frame >> 32) * 31 + (__u32)train->frame * 8 + train->layer;
	__u32 row = (object * DELAY_OBJECT_PACKETS + ((train->index + number) & (DELAY_OBJECT_PACKETS - 1))) &
		    (DELAY_PACKETS - 1);

	return bpf_map_lookup_elem(&delay_arrivals, &row);
}

SEC("tcx/egress")
int arrive(struct __sk_buff *skb)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct media_train train;

	if (!find_media(skb, &train))
		return TC_ACT_UNSPEC;
	for (__u32 number = 0; number < DELAY_OBJECT_PACKETS && number < train.packets; number++) {
		struct arrived *arrived = arrival_of(&train, number);

		if (!arrived)
			break;
		arrived->frame = train.frame;
		arrived->index = train.index + number;
		arrived->layer = train.layer;
		arrived->last = train.index + train.packets - 1;
		arrived->at_ns = now_ns;
	}
	return TC_ACT_UNSPEC;
}

/* Counts `packets` from the `number`th on, which arrived together if they arrived. */
static __always_inline void count_delays(const struct media_train *train, const struct arrived *arrived, __u32 number,
					 __u32 packets, __u64 now_ns)
{
	if (!arrived)
		return;
	if (arrived->frame != train->frame || arrived->index != train->index + number || arrived->layer != train->layer) {
		__sync_fetch_and_add(&unmatched, packets);
		return;
	}
	count_delay(train->is_apart, now_ns - arrived->at_ns, packets);
}

/* A train that leaves. */
struct departure {
	struct media_train train;
	__u64 now_ns;
};

/* Counts a packet of a train. */
static long count_packet(__u32 number, struct departure *departure)
{
	const struct media_train *train = &departure->train;

	if (number >= train->packets)
		return 1;
	count_delays(train, arrival_of(train, number), number, 1, departure->now_ns);
	return 0;
}

SEC("tcx/egress")
int depart(struct __sk_buff *skb)
{
	struct departure departure = { .now_ns = bpf_ktime_get_ns() };
	const struct media_train *train = &departure.train;
	const struct arrived *arrived;

	if (!find_media(skb, &departure.train))
		return TC_ACT_UNSPEC;
	arrived = arrival_of(train, 0);
	if (arrived && arrived->last >= train->index + train->packets - 1)
		count_delays(train, arrived, 0, train->packets, departure.now_ns);
	else
		bpf_loop(DELAY_OBJECT_PACKETS, count_packet, &departure, 0);
	return *(volatile __u32 *)&ends ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Where packets are of no use: at the other end of the cable, or in place of a relay. */
SEC("tcx/ingress")
int discard(__attribute__((unused)) struct __sk_buff *skb)
{
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

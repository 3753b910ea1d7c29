/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Measures how long the packets of objects take through a relay that encrypts each subscriber's packets for
 * itself, as one of QUIC does, so that nothing but their order is the same: the nth long packet that a
 * subscriber is sent since the publisher began an object is the nth of the object. Objects are so far apart
 * that a relay has sent one before the next begins, and a packet is long if it cannot be an acknowledgement.
 */
#include "delays.h"

#include <linux/pkt_cls.h>

enum stream_limit {
	STREAM_PACKETS = 128,       /* of an object */
	STREAM_SUBSCRIBERS = 4096,
};

/* What a subscriber was sent. */
struct stream {
	__u64 object;
	__u32 packets;
	__u32 reserved;
};

/* Key: address (IPv4) and port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, struct stream);
	__uint(max_entries, STREAM_SUBSCRIBERS);
} streams SEC(".maps");

/* When each packet of the newest object was sent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, STREAM_PACKETS);
} sent_ns SEC(".maps");

__u64 pause_ns;      /* by user space: the least time between two objects */
__u64 last_sent_ns;  /* by the publisher */
__u64 object;        /* the newest one */
__u32 packets;       /* of the newest object so far */
__u32 least_bytes;   /* by user space: of a long packet, above UDP */
__u64 unmatched;     /* packets that were sent to a subscriber in excess of the object */

/* Returns the number of packets, 0 if they are not long. */
static __always_inline __u32 find_packets(struct __sk_buff *skb, __u64 *subscriber)
{
	struct cursor cursor = read_skb(skb, sizeof(struct udphdr));
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct packet packet;
	__u32 bytes;

	if (!ethernet || parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet) != PARSED)
		return 0;
	if (packet.protocol != IPPROTO_UDP || packet.is_ipv6 || packet.is_fragment)
		return 0;
	*subscriber = (__u64)((const __u32 *)packet.destination)[3] << 16 | packet.destination_port;
	bytes = skb->gso_size ?: packet.bytes - sizeof(struct iphdr) - sizeof(struct udphdr);
	return bytes < least_bytes ? 0 : skb->gso_segs ?: 1;
}

SEC("tcx/egress")
int send(struct __sk_buff *skb)
{
	__u64 now_ns = bpf_ktime_get_ns(), receiver;
	__u32 found = find_packets(skb, &receiver);

	if (!found)
		return TC_ACT_UNSPEC;
	if (now_ns - last_sent_ns > pause_ns) {
		packets = 0;
		object++;
	}
	last_sent_ns = now_ns;
	for (__u32 number = 0; number < STREAM_PACKETS && number < found; number++) {
		__u32 index = packets;

		if (bpf_map_update_elem(&sent_ns, &index, &now_ns, BPF_ANY))
			break;
		packets = index + 1;
	}
	return TC_ACT_UNSPEC;
}

/* Packets of a subscriber that leave together. */
struct delivery {
	struct stream *stream;
	__u64 now_ns;
	__u32 found;
};

/* Counts one of them. */
static long count_packet(__u32 number, struct delivery *delivery)
{
	__u32 index = delivery->stream->packets;
	const __u64 *sent = bpf_map_lookup_elem(&sent_ns, &index);

	if (number >= delivery->found)
		return 1;
	if (!sent || index >= packets) {
		__sync_fetch_and_add(&unmatched, 1);
		return 0;
	}
	count_delay(0, delivery->now_ns - *sent, 1);
	delivery->stream->packets = index + 1;
	return 0;
}

SEC("tcx/egress")
int deliver(struct __sk_buff *skb)
{
	struct delivery delivery = { .now_ns = bpf_ktime_get_ns() };
	struct stream fresh = { .object = object };
	__u64 subscriber = 0;

	delivery.found = find_packets(skb, &subscriber);
	if (!delivery.found)
		return TC_ACT_UNSPEC;
	delivery.stream = bpf_map_lookup_elem(&streams, &subscriber);
	if (!delivery.stream) {
		bpf_map_update_elem(&streams, &subscriber, &fresh, BPF_ANY);
		delivery.stream = bpf_map_lookup_elem(&streams, &subscriber);
		if (!delivery.stream)
			return TC_ACT_UNSPEC;
	}
	if (delivery.stream->object != object) {
		delivery.stream->object = object;
		delivery.stream->packets = 0;
	}
	bpf_loop(STREAM_PACKETS, count_packet, &delivery, 0);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

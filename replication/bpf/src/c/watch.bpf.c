/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Records the viewer's requests: TCX at the ingress of the device that faces the viewer. Times and
 * sizes are recorded; every packet is passed on unchanged.
 */
#include "select.h"
#include "skb.h"

#include <linux/pkt_cls.h>

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04

/* The fields of a TCP header after its ports. */
struct tcp_rest {
	__be32 sequence_be;
	__be32 acknowledged_be;
	__u8 offset; /* high nibble: the header's length in words */
	__u8 flags;
} __attribute__((packed));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct watch_flow);
	__uint(max_entries, MAX_FLOWS);
} watch_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct watch_latest);
	__uint(max_entries, MAX_FLOWS);
} watch_latest SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct watch_stats);
	__uint(max_entries, MAX_FLOWS);
} watch_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} requests SEC(".maps");

/* BTF includes only types that a variable has: this makes it visible to user space. */
volatile const struct request request_type;

/* Computes the payload size from the length of the IP packet: frames may be padded, and GSO packets
 * have several segments. False if the headers are incomplete.
 */
static __always_inline bool parse_transport(struct cursor *cursor, const struct packet *packet, __u32 ip_bytes,
					    struct request *request, __u32 *payload_bytes)
{
	__u32 header_bytes = ip_bytes + sizeof(struct udphdr);

	if (packet->protocol == IPPROTO_TCP) {
		struct tcp_rest *tcp = take(cursor, sizeof(*tcp));

		if (!tcp)
			return false;
		request->sequence = bpf_ntohl(tcp->sequence_be);
		request->flags = tcp->flags;
		header_bytes = ip_bytes + (tcp->offset >> 4) * 4;
	}
	if (packet->bytes < header_bytes)
		return false;
	*payload_bytes = packet->bytes - header_bytes;
	return true;
}

/* Returns whether the same connection has sent these bytes before; if not, records them as the
 * latest.
 */
static __always_inline bool is_retransmission(struct __sk_buff *skb, struct watch_latest *latest, __u32 end)
{
	struct watch_latest next = { .connection = bpf_get_hash_recalc(skb) | 1, .end = end }, before;

	*(__u64 *)&before = *(volatile __u64 *)latest;
	if (before.connection == next.connection && (__s32)(end - before.end) <= 0)
		return true;
	*(volatile __u64 *)latest = *(__u64 *)&next;
	return false;
}

static __always_inline void record(const struct request *request, struct watch_stats *stats)
{
	if (bpf_ringbuf_output(&requests, (void *)request, sizeof(*request), 0))
		stats->lost++;
}

static __always_inline void watch_packet(struct __sk_buff *skb)
{
	struct cursor cursor = read_skb(skb, 4 + sizeof(struct tcp_rest));
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct request request = {};
	struct watch_latest *latest;
	struct watch_stats *stats;
	struct watch_flow *flow;
	struct packet packet;
	__u32 index, payload_bytes, ip_bytes;
	void *ip = cursor.at;
	int selected;

	if (!ethernet || parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet) != PARSED)
		return;
	if (packet.protocol != IPPROTO_TCP && packet.protocol != IPPROTO_UDP)
		return;
	selected = select_flow(&packet);
	if (selected < 0 || packet.is_fragment)
		return;
	index = selected;
	flow = bpf_map_lookup_elem(&watch_flows, &index);
	stats = bpf_map_lookup_elem(&watch_stats, &index);
	latest = bpf_map_lookup_elem(&watch_latest, &index);
	if (!flow || !flow->configured || !stats || !latest)
		return;
	ip_bytes = cursor.at - ip - 4;
	if (!parse_transport(&cursor, &packet, ip_bytes, &request, &payload_bytes))
		return;
	request.flow = index;
	request.at_ns = bpf_ktime_get_ns();
	/* A GSO packet is a burst of packets: record the size of the first segment. */
	request.bytes = skb->gso_size && skb->gso_size < payload_bytes ? skb->gso_size : payload_bytes;
	if (request.flags & (TCP_FIN | TCP_SYN | TCP_RST))
		*(volatile __u64 *)latest = 0;
	if (request.flags & (TCP_FIN | TCP_RST)) {
		stats->ends++;
		record(&request, stats);
	} else if (request.flags & TCP_SYN || request.bytes < flow->bytes_min || request.bytes > flow->bytes_max) {
		stats->others++;
	} else if (packet.protocol == IPPROTO_TCP &&
		   is_retransmission(skb, latest, request.sequence + payload_bytes)) {
		stats->retransmissions++;
	} else {
		stats->requests++;
		record(&request, stats);
	}
}

SEC("tcx/ingress")
int watch(struct __sk_buff *skb)
{
	watch_packet(skb);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The relay: TCX at the ingress of the devices that upstreams send media to. A packet, or a train of
 * packets that came as one, is verified, decided on, tagged for the next hop, and sent to subscribers.
 * docs/design/relay.md gives the reasons.
 */
#include "fanout.h"
#include "media.h"
#include "skb.h"

#include <linux/pkt_cls.h>

volatile const __u16 datagram_bytes; /* the longest UDP payload that is relayed */
volatile const __u32 segmenter_entry; /* the device that splits trains; 0 = there is none */

/* What arrived: one packet, or a train of packets of one length, of which the last may be shorter. */
struct incoming {
	struct __sk_buff *skb;
	const struct relay_upstream *upstream;
	const struct relay_track *track;
	__u32 index;   /* of the track */
	__u32 offset;  /* of the first packet's header */
	__u32 stride;  /* from one packet's header to the next */
	__u32 bytes;   /* of all packets, from the first one's header on */
	__u32 packets;
	enum relay_reason reason;
	struct media first;
	struct media last;
};

static __always_inline int drop(__u32 track, enum relay_reason reason, __u32 packets)
{
	count_packets(track, reason, packets);
	return TC_ACT_SHOT;
}

/* Returns why a header is refused; RELAY_FORWARDED if the upstream made it. */
static __always_inline enum relay_reason check(const struct media *media, const struct relay_upstream *upstream)
{
	if (!media_is_valid(media))
		return RELAY_HEADER;
	for (__u32 i = 0; i < 2; i++) {
		if (upstream->keys_valid & 1 << i && media->hop_be == upstream->hops_be[i])
			return media_tag(media, &upstream->keys[i]) == media_tag_of(media) ? RELAY_FORWARDED :
											      RELAY_TAG;
	}
	return RELAY_HOP_KEY;
}

/* Returns whether a packet of a train belongs to the same object as the first one and is the
 * `number`th after it. Only the last packet of an object has to name the number of packets.
 */
static __always_inline bool follows(const struct media *media, const struct media *first, __u32 number)
{
	const __u64 *words = WORDS(media), *of_first = WORDS(first);

	return words[0] == of_first[0] && words[1] == of_first[1] &&
	       bpf_ntohs(media->index_be) == bpf_ntohs(first->index_be) + number;
}

/* Checks a packet of a train. */
static long check_segment(__u32 number, struct incoming *in)
{
	struct media media;

	if (number >= in->packets)
		return 1;
	in->reason = RELAY_MALFORMED;
	if (bpf_skb_load_bytes(in->skb, in->offset + number * in->stride, &media, sizeof(media)))
		return 1;
	in->reason = check(&media, in->upstream);
	if (!number)
		in->first = media;
	else if (!in->reason && (!follows(&media, &in->first, number) ||
				 (in->last.count_be && in->last.count_be != media.count_be)))
		in->reason = RELAY_SPLIT;
	in->last = media;
	return in->reason != RELAY_FORWARDED;
}

/* Tags a packet of a train for the next hop, the last one first: that makes all of the train writable
 * at once.
 */
static long tag_segment(__u32 from_last, struct incoming *in)
{
	__u32 number = in->packets - 1 - from_last, second = !!(in->track->flags & TRACK_SECOND_HOP);
	__u32 offset = in->offset + number * in->stride;
	struct media media, before;
	__u64 tag;

	if (from_last >= in->packets)
		return 1;
	in->reason = RELAY_NO_ROOM;
	if (bpf_skb_load_bytes(in->skb, offset, &media, sizeof(media)))
		return 1;
	before = media;
	media.hop_be = in->track->hops_be[second];
	tag = media_tag(&media, &in->track->hops[second]);
	__builtin_memcpy(media.tag, &tag, sizeof(tag));
	if (bpf_skb_store_bytes(in->skb, offset + MEDIA_HOP, &media.hop_be, sizeof(media) - MEDIA_HOP, 0))
		return 1;
	if (in->packets == 1) {
		__u32 check = in->offset - sizeof(struct udphdr) + offsetof(struct udphdr, check);
		__be32 *was = (void *)&before.epoch_be, *is = (void *)&media.epoch_be;
		__s64 difference = bpf_csum_diff(was, 12, is, 12, 0);

		if (bpf_l4_csum_replace(in->skb, check, 0, difference, BPF_F_MARK_MANGLED_0))
			return 1;
	}
	in->reason = RELAY_FORWARDED;
	return 0;
}

/* Sends a train through the segmenter, whose exit has this program too. */
static __always_inline int split(const struct incoming *in)
{
	if (!segmenter_entry)
		return drop(RELAY_TRACKS, RELAY_NOT_SPLIT, in->packets);
	count_packets(RELAY_TRACKS, RELAY_SPLIT, in->packets);
	return bpf_redirect(segmenter_entry, 0);
}

/* Returns whether the header of IP is one that is overwritten whole. */
static __always_inline bool is_plain(const struct packet *packet, __u32 udp_bytes)
{
	__u32 header_bytes = packet->is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return packet->bytes == header_bytes + udp_bytes && !packet->padding_bytes;
}

static __always_inline void fill_session(struct relay_session *session, const struct packet *packet,
					 const struct udphdr *udp)
{
	__builtin_memcpy(session->local, packet->destination, sizeof(session->local));
	if (packet->is_ipv6) {
		__builtin_memcpy(session->remote, &((const struct ipv6hdr *)packet->header)->saddr, 16);
	} else {
		__builtin_memset(session->remote, 0, 10);
		__builtin_memset(session->remote + 10, 0xff, 2);
		__builtin_memcpy(session->remote + 12, &((const struct iphdr *)packet->header)->saddr, 4);
	}
	session->remote_port_be = udp->source;
	session->local_port_be = udp->dest;
}

/* Sums up what of the headers is in checksums and changes from clone to clone. */
static __always_inline void sum_headers(struct fanout *fanout, const struct packet *packet, const struct udphdr *udp)
{
	if (packet->is_ipv6) {
		const struct ipv6hdr *ip = packet->header;

		fanout->addresses_sum = fold(sum_words(0, &ip->saddr, 8));
		fanout->header_sum = add_sums(fold(sum_words(0, ip, 2)), fanout->addresses_sum);
	} else {
		const struct iphdr *ip = packet->header;

		fanout->addresses_sum = fold(sum_words(0, &ip->saddr, 2));
		fanout->header_sum = 0;
	}
	fanout->ports_sum = fold(sum_words(0, udp, 1));
	fanout->has_checksum = udp->check;
	fanout->traffic_class = packet->traffic_class;
	fanout->family = packet->is_ipv6 ? AF_INET6 : AF_INET;
}

static __always_inline int relay_packet(struct __sk_buff *skb, __u64 now_ns)
{
	struct cursor cursor = read_skb(skb, sizeof(struct udphdr) + sizeof(struct media));
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct incoming in = { .skb = skb };
	struct fanout fanout = { .skb = skb, .now_ns = now_ns, .begun_ns = now_ns };
	struct relay_endpoint endpoint = {};
	struct relay_session session;
	struct relay_alias alias;
	struct packet packet;
	struct udphdr *udp;
	__u32 udp_bytes, *index, zero = 0;
	__u64 *slots = bpf_map_lookup_elem(&relay_sending, &zero);
	__u8 *version;

	if (!ethernet || !slots || skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet) != PARSED)
		return TC_ACT_UNSPEC;
	if (packet.protocol != IPPROTO_UDP || packet.is_fragment)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(endpoint.address, packet.destination, sizeof(endpoint.address));
	endpoint.port_be = bpf_htons(packet.destination_port);
	if (!bpf_map_lookup_elem(&relay_endpoints, &endpoint))
		return TC_ACT_UNSPEC;

	udp = cursor.at - 4; /* the ports have been taken */
	if ((void *)(udp + 1) + 1 > cursor.end)
		return TC_ACT_UNSPEC;
	version = (void *)(udp + 1);
	udp_bytes = bpf_ntohs(udp->len);
	if (udp_bytes <= sizeof(*udp) || *version != MEDIA_VERSION) {
		count_packets(RELAY_TRACKS, RELAY_PASSED, 1);
		return TC_ACT_UNSPEC;
	}
	in.bytes = udp_bytes - sizeof(*udp);
	in.stride = skb->gso_size ?: in.bytes;
	in.packets = (in.bytes + in.stride - 1) / in.stride;
	in.offset = (void *)version - (void *)(long)skb->data;

	fill_session(&session, &packet, udp);
	in.upstream = bpf_map_lookup_elem(&relay_upstreams, &session);
	if (!in.upstream)
		return drop(RELAY_TRACKS, RELAY_NO_UPSTREAM, in.packets);
	if (!is_plain(&packet, udp_bytes))
		return drop(RELAY_TRACKS, RELAY_MALFORMED, in.packets);
	if (in.stride > datagram_bytes)
		return drop(RELAY_TRACKS, RELAY_OVERSIZE, in.packets);
	if (in.packets == 1 && in.bytes < MEDIA_SMALLEST)
		return drop(RELAY_TRACKS, RELAY_TRUNCATED, 1);
	sum_headers(&fanout, &packet, udp);
	fanout.packets = in.packets;
	fanout.udp_bytes = sizeof(*udp) + in.stride;

	in.reason = RELAY_SPLIT;
	/* The last packet of a train may be too short, and a train whose checksums are complete already
	 * consists of packets with headers of their own.
	 */
	if (in.packets == 1 || (in.packets <= RELAY_SEGMENTS && in.bytes - (in.packets - 1) * in.stride >= MEDIA_SMALLEST &&
				bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) < 0))
		bpf_loop(RELAY_SEGMENTS, check_segment, &in, 0);
	if (in.reason)
		return in.packets > 1 ? split(&in) : drop(RELAY_TRACKS, in.reason, 1);

	alias.upstream = in.upstream->number;
	alias.alias = bpf_ntohl(in.first.alias_be);
	index = bpf_map_lookup_elem(&relay_aliases, &alias);
	if (!index)
		return drop(RELAY_TRACKS, RELAY_NO_TRACK, in.packets);
	in.index = *index;
	in.track = bpf_map_lookup_elem(&relay_tracks, &in.index);
	if (!in.track || !(in.track->flags & TRACK_ACTIVE))
		return drop(RELAY_TRACKS, RELAY_NO_TRACK, in.packets);

	if (!(in.track->flags & TRACK_SAME_HOP)) {
		bpf_loop(RELAY_SEGMENTS, tag_segment, &in, 0);
		if (in.reason)
			return drop(in.index, in.reason, in.packets);
	}
	count_packets(in.index, RELAY_FORWARDED, in.packets);
	for (__u32 i = 0; i < RELAY_WORDS; i++)
		slots[i] = in.track->subscribers[i];
	fanout.slots = slots;
	send_to_all(&fanout);
	return TC_ACT_SHOT;
}

SEC("tcx/ingress")
int relay(struct __sk_buff *skb)
{
	return relay_packet(skb, bpf_ktime_get_ns());
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* What the relay does with a packet, or with a train of packets that came as one: parse, verify,
 * decide, tag for the next hop, send to subscribers. docs/design/relay.md gives the reasons.
 */
#ifndef HAWSER_RELAY_H
#define HAWSER_RELAY_H

#include "fanout.h"
#include "media.h"
#include "objects.h"
#include "skb.h"

#include <linux/pkt_cls.h>

volatile const __u16 datagram_bytes; /* the longest UDP payload that is relayed */

/* What arrived: one packet, or a train of packets of one length, of which the last may be shorter. */
struct incoming {
	struct __sk_buff *skb;
	const struct relay_upstream *upstream;
	const struct relay_track *track;
	struct offer *offer;
	__u32 offset; /* of the first packet's header of media */
	__u32 stride; /* from one packet's header to the next */
	__u32 bytes;  /* of all packets, from the first one's header on */
	__u32 packets;
	__u32 addresses_sum;
	__u32 ports_sum;
	__u32 header_sum; /* of the IP header; that of IPv4 sums up to nothing */
	__u16 family;
	__u8 traffic_class;
	bool has_checksum;
	enum relay_reason reason;
};

/* The result of parsing: no reason to drop the packet. */
#define PARSED_MEDIA RELAY_FORWARDED
/* It is not addressed to the relay. */
#define NOT_ADDRESSED RELAY_REASONS

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
static __always_inline void sum_headers(struct incoming *in, const struct packet *packet, const struct udphdr *udp)
{
	if (packet->is_ipv6) {
		const struct ipv6hdr *ip = packet->header;

		in->addresses_sum = fold(sum_words(0, &ip->saddr, 8));
		in->header_sum = add_sums(fold(sum_words(0, ip, 2)), in->addresses_sum);
	} else {
		const struct iphdr *ip = packet->header;

		in->addresses_sum = fold(sum_words(0, &ip->saddr, 2));
		in->header_sum = 0;
	}
	in->ports_sum = fold(sum_words(0, udp, 1));
	in->has_checksum = udp->check;
	in->traffic_class = packet->traffic_class;
	in->family = packet->is_ipv6 ? AF_INET6 : AF_INET;
}

/* Finds the datagrams in a packet, and the upstream that they came from. */
static __noinline int parse(struct incoming *in)
{
	struct __sk_buff *skb = in->skb;
	struct cursor cursor = read_skb(skb, sizeof(struct udphdr) + sizeof(struct media));
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct relay_endpoint endpoint = {};
	struct relay_session session;
	struct packet packet;
	struct udphdr *udp;
	__u32 udp_bytes;
	__u8 *version;

	if (!ethernet || skb->vlan_present)
		return NOT_ADDRESSED;
	if (parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet) != PARSED)
		return NOT_ADDRESSED;
	if (packet.protocol != IPPROTO_UDP || packet.is_fragment)
		return NOT_ADDRESSED;
	__builtin_memcpy(endpoint.address, packet.destination, sizeof(endpoint.address));
	endpoint.port_be = bpf_htons(packet.destination_port);
	if (!bpf_map_lookup_elem(&relay_endpoints, &endpoint))
		return NOT_ADDRESSED;

	udp = cursor.at - 4; /* the ports have been taken */
	version = (void *)(udp + 1);
	if ((void *)(version + 1) > cursor.end)
		return RELAY_PASSED;
	udp_bytes = bpf_ntohs(udp->len);
	if (udp_bytes <= sizeof(*udp) || *version != MEDIA_VERSION)
		return RELAY_PASSED;
	in->bytes = udp_bytes - sizeof(*udp);
	in->stride = skb->gso_size ?: in->bytes;
	in->packets = (in->bytes + in->stride - 1) / in->stride;
	in->offset = (void *)version - (void *)(long)skb->data;
	sum_headers(in, &packet, udp);

	fill_session(&session, &packet, udp);
	in->upstream = bpf_map_lookup_elem(&relay_upstreams, &session);
	if (!in->upstream)
		return RELAY_NO_UPSTREAM;
	if (!is_plain(&packet, udp_bytes))
		return RELAY_MALFORMED;
	if (in->stride > datagram_bytes)
		return RELAY_OVERSIZE;
	if (in->packets == 1 && in->bytes < MEDIA_SMALLEST)
		return RELAY_TRUNCATED;
	return PARSED_MEDIA;
}

/* Returns why a header is refused; RELAY_FORWARDED if the upstream made it. */
static __always_inline enum relay_reason check_header(const struct media *media, const struct relay_upstream *upstream)
{
	if (!media_is_valid(media))
		return RELAY_HEADER;
	for (__u32 i = 0; i < RELAY_UPSTREAM_KEYS; i++) {
		if (upstream->keys_valid & 1 << i && media->hop_be == upstream->hops_be[i])
			return media_tag(media, &upstream->keys[i]) == media_tag_of(media) ? RELAY_FORWARDED :
											      RELAY_TAG;
	}
	return RELAY_HOP_KEY;
}

static __always_inline __u64 frame_of(const struct media *media)
{
	return (__u64)bpf_ntohl(media->group_be) << 32 | bpf_ntohl(media->object_be);
}

/* Offers the first packet of a train. */
static __always_inline void offer_first(struct offer *offer, const struct media *media)
{
	offer->frame = frame_of(media);
	offer->alias = bpf_ntohl(media->alias_be);
	offer->first = bpf_ntohs(media->index_be);
	offer->count = bpf_ntohs(media->count_be);
	offer->layer = media->layer;
	offer->priority = media->priority;
	offer->alone = media->flags & MEDIA_ALONE;
}

/* Offers the next packet of a train; returns whether it belongs to the same object and is the
 * `number`th after the first. Packets in front of the last one of an object need not name the count.
 */
static __always_inline bool offer_next(struct offer *offer, const struct media *media, __u32 number)
{
	__u32 count = bpf_ntohs(media->count_be);

	if (frame_of(media) != offer->frame || media->layer != offer->layer || media->priority != offer->priority ||
	    bpf_ntohl(media->alias_be) != offer->alias || bpf_ntohs(media->index_be) != offer->first + number ||
	    (offer->count && offer->count != count))
		return false;
	offer->count = count;
	return true;
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
	in->reason = check_header(&media, in->upstream);
	if (!number)
		offer_first(in->offer, &media);
	else if (!in->reason && !offer_next(in->offer, &media, number))
		in->reason = RELAY_NOT_SPLIT;
	return in->reason != RELAY_FORWARDED;
}

/* Returns whether a train can be treated as a whole, from its lengths. The last packet may be too
 * short. A train whose checksums are complete consists of packets with headers of their own.
 */
static __always_inline bool is_train(const struct incoming *in)
{
	return in->packets <= RELAY_SEGMENTS && in->bytes - (in->packets - 1) * in->stride >= MEDIA_SMALLEST &&
	       bpf_csum_level(in->skb, BPF_CSUM_LEVEL_QUERY) < 0;
}

/* Verifies all packets. */
static __always_inline enum relay_reason verify(struct incoming *in)
{
	if (in->packets > 1 && !is_train(in))
		return RELAY_NOT_SPLIT;
	bpf_loop(RELAY_SEGMENTS, check_segment, in, 0);
	return in->reason && in->packets > 1 ? RELAY_NOT_SPLIT : in->reason;
}

/* Returns the index of the packets' track; RELAY_TRACKS if it is not relayed. */
static __always_inline __u32 find_track(struct incoming *in)
{
	struct relay_alias alias = {
		.upstream = in->upstream->number,
		.alias = in->offer->alias,
	};
	__u32 *index = bpf_map_lookup_elem(&relay_aliases, &alias);

	if (!index)
		return RELAY_TRACKS;
	in->track = bpf_map_lookup_elem(&relay_tracks, index);
	return in->track && in->track->flags & TRACK_ACTIVE ? *index : RELAY_TRACKS;
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

static __always_inline void record_arrival(const struct incoming *in, enum relay_reason reason)
{
	struct relay_arrival *record = bpf_ringbuf_reserve(&relay_arrivals, sizeof(*record), 0);
	const struct offer *offer = in->offer;

	if (!record) {
		count_packets(offer->track, RELAY_LOST_ARRIVALS, 1);
		return;
	}
	record->at_ns = offer->now_ns;
	record->frame = offer->frame;
	record->upstream = in->upstream->number;
	record->bytes = in->bytes;
	record->stride = in->stride;
	record->index = offer->first;
	record->packets = in->packets;
	record->track = offer->track;
	record->layer = offer->layer;
	record->ecn = in->traffic_class & ECN_MASK;
	record->reason = reason;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

static __always_inline int drop(__u32 track, enum relay_reason reason, __u32 packets)
{
	count_packets(track, reason, packets);
	return TC_ACT_SHOT;
}

#define HEADERS_V4 (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define HEADERS_V6 (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr))

static __always_inline bool save_headers(const struct incoming *in)
{
	if (in->family == AF_INET)
		return !bpf_skb_load_bytes(in->skb, 0, in->offer->headers, HEADERS_V4);
	return !bpf_skb_load_bytes(in->skb, 0, in->offer->headers, HEADERS_V6);
}

/* Gives the packet the headers back that it had before clones were sent. */
static __always_inline bool restore_headers(const struct incoming *in, struct fanout *fanout)
{
	__u32 addresses = subtract_sums(fanout->addresses_sum, in->addresses_sum), header;

	if (fanout->family != in->family && !change_family(fanout))
		return false;
	if (in->family == AF_INET ? bpf_skb_store_bytes(in->skb, 0, in->offer->headers, HEADERS_V4, 0) :
				    bpf_skb_store_bytes(in->skb, 0, in->offer->headers, HEADERS_V6, 0))
		return false;
	/* See write_headers. The UDP checksum has changed by the difference of the addresses. */
	header = subtract_sums(fanout->header_sum, in->header_sum);
	bpf_csum_update(in->skb, subtract_sums(addresses, header));
	return true;
}

/* Sends the packets to all slots that they are for. Returns whether they are as they were before, if
 * that is wanted.
 */
static __noinline int forward(struct incoming *in, bool is_kept)
{
	const struct offer *offer = in->offer;
	struct fanout fanout = {
		.skb = in->skb,
		.now_ns = offer->now_ns,
		.begun_ns = offer->begun_ns,
		.slots = offer->slots,
		.packets = in->packets,
		.bytes = in->bytes,
		.udp_bytes = sizeof(struct udphdr) + in->stride,
		.family = in->family,
		.addresses_sum = in->addresses_sum,
		.ports_sum = in->ports_sum,
		.header_sum = in->header_sum,
		.level = offer->level,
		.priority = offer->priority,
		.alone = offer->alone && in->packets == 1,
		.number = (__u32)(offer->frame >> 32) * 159 + offer->first,
		.has_checksum = in->has_checksum,
	};

	if (is_kept)
		is_kept = save_headers(in);
	send_to_all(&fanout);
	return is_kept && !fanout.is_broken && restore_headers(in, &fanout);
}

/* Decides on verified packets, and acts. */
static __always_inline int relay_verified(struct incoming *in)
{
	struct offer *offer = in->offer;
	enum relay_reason reason;
	__u32 flags;

	offer->track = find_track(in);
	if (offer->track >= RELAY_TRACKS)
		return drop(RELAY_TRACKS, RELAY_NO_TRACK, in->packets);
	offer->bytes = in->bytes;
	offer->packets = in->packets;
	reason = observe(offer);
	if (reason != RELAY_FORWARDED && reason != RELAY_DUPLICATE && reason != RELAY_OUTDATED)
		return drop(offer->track, reason, in->packets);

	flags = in->track->flags;
	if (!(flags & TRACK_SAME_HOP)) {
		bpf_loop(RELAY_SEGMENTS, tag_segment, in, 0);
		if (in->reason)
			return drop(offer->track, in->reason, in->packets);
	}
	count_packets(offer->track, reason, in->packets);
	if (flags & TRACK_ARRIVALS)
		record_arrival(in, reason);
	if (reason == RELAY_FORWARDED && !forward(in, flags & TRACK_COPY) && flags & TRACK_COPY)
		return drop(offer->track, RELAY_LOST_COPIES, in->packets);
	return flags & TRACK_COPY ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

static __always_inline int relay_packet(struct __sk_buff *skb, __u64 now_ns)
{
	struct incoming in = { .skb = skb };
	__u32 zero = 0;
	int reason, action;

	reason = parse(&in);
	if (reason == NOT_ADDRESSED)
		return TC_ACT_UNSPEC;
	if (reason == RELAY_PASSED) {
		count_packets(RELAY_TRACKS, RELAY_PASSED, 1);
		return TC_ACT_UNSPEC;
	}
	if (reason != PARSED_MEDIA)
		return drop(RELAY_TRACKS, reason, in.packets);

	in.offer = bpf_map_lookup_elem(&relay_offers, &zero);
	/* A device that a clone is sent by may hand it to another one within the call. */
	if (!in.offer || in.offer->busy)
		return drop(RELAY_TRACKS, RELAY_CONTENDED, in.packets);
	in.offer->busy = true;
	in.offer->now_ns = now_ns;
	reason = verify(&in);
	if (!reason)
		action = relay_verified(&in);
	else
		action = drop(RELAY_TRACKS, reason, in.packets);
	in.offer->busy = false;
	return action;
}

#endif

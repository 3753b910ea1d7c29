/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Types and constants that the relay's programs share with user space, see docs/design/relay.md.
 * media/fanout is the executable specification of what is decided with them.
 */
#ifndef HAWSER_RELAY_ABI_H
#define HAWSER_RELAY_ABI_H

#include <linux/types.h>

#include "siphash_abi.h"

enum relay_limit {
	RELAY_TRACKS = 64,
	RELAY_SLOTS = 1024,  /* subscribers */
	RELAY_WORDS = 16,    /* of a bitmap of slots */
	RELAY_OBJECTS = 64,  /* of a track that are remembered */
	RELAY_PACKETS = 8192, /* of an object */
	RELAY_LEVELS = 8,    /* of priority, for budgets */
	RELAY_BUCKETS = 9,   /* of a slot: one of each level, and one of all */
	RELAY_SEGMENTS = 128, /* of a train: UDP_MAX_SEGMENTS of the kernel */
};
_Static_assert(RELAY_WORDS * 64 == RELAY_SLOTS, "a bit for each slot");

/* The header of a packet of media, docs/design/media.md. */
struct media {
	__u8 version;
	__u8 flags;
	__u8 priority;
	__u8 layer;
	__be32 alias_be;
	__be32 group_be;
	__be32 object_be;
	__be16 index_be;
	__be16 count_be;
	__be32 deadline_be;
	__be16 epoch_be;
	__be16 hop_be;
	__u8 tag[8];
};
_Static_assert(sizeof(struct media) == 36, "the header of media is 36 bytes");

#define MEDIA_VERSION 1
#define MEDIA_FLAGS 0x7
#define MEDIA_ALONE 0x2 /* each packet decodes alone */
#define MEDIA_LAYERS 8
#define MEDIA_SMALLEST 53 /* the header, a byte of payload, its authentication tag */
#define MEDIA_HOP 26      /* the offset of what each hop replaces */
#define MEDIA_TAGGED 28   /* the bytes that the hop tag covers */

/* ---- written by user space ---- */

/* Key: an address and a port of this node at which it takes media. */
struct relay_endpoint {
	__u8 address[16]; /* IPv4 mapped */
	__be16 port_be;
	__u8 reserved[2];
};
_Static_assert(sizeof(struct relay_endpoint) == 20, "no padding in an endpoint");

/* Key: both ends of a session with an upstream. */
struct relay_session {
	__u8 remote[16]; /* IPv4 mapped */
	__u8 local[16];
	__be16 remote_port_be;
	__be16 local_port_be;
};
_Static_assert(sizeof(struct relay_session) == 36, "no padding in a session");

#define RELAY_UPSTREAM_KEYS 3 /* the one before, the current one, and the one after */

/* The upstream at the other end, and the keys of its hop tags. */
struct relay_upstream {
	struct siphash_key keys[RELAY_UPSTREAM_KEYS];
	__be16 hops_be[RELAY_UPSTREAM_KEYS]; /* the numbers of the keys */
	__u8 keys_valid;		     /* bit i = keys[i] */
	__u8 reserved;
	__u32 number;
	__u32 reserved1;
};
_Static_assert(sizeof(struct relay_upstream) == 64, "relay_upstream");

/* Key: the name of a track at an upstream. Value: the track's index. */
struct relay_alias {
	__u32 upstream;
	__u32 alias;
};

enum relay_track_flag {
	TRACK_ACTIVE = 0x1,
	TRACK_SECOND_HOP = 0x2, /* hops[1] is in use, else hops[0] */
	TRACK_SAME_HOP = 0x4,   /* the upstream's hop fields are kept */
	TRACK_COPY = 0x8,       /* packets also go to the relay's socket */
	TRACK_ARRIVALS = 0x10,  /* arrivals are recorded */
};

/* What cannot be decoded of a track, because something that it depends on is missing. */
struct relay_missing {
	__u32 group;
	__u32 first[MEDIA_LAYERS]; /* the first frame of the group from which on a layer is broken, ~0 = none */
};

/* A track. The keys are those that packets for subscribers are tagged with. User space
 * writes the one that is not in use, and then `flags`.
 */
struct relay_track {
	struct siphash_key hops[2];
	__be16 hops_be[2]; /* the numbers of the keys */
	__u32 flags;
	__u64 subscribers[RELAY_WORDS];
	struct relay_missing lost; /* on its way to the relay */
	__u32 reserved;
};
_Static_assert(sizeof(struct relay_track) == 208, "relay_track");

/* A subscriber's address and the way there. User space changes a row in use only by aligned words. */
struct relay_slot {
	__u64 expires_ns; /* CLOCK_MONOTONIC; 0 = not in use */
	__u64 since_ns;   /* objects that were begun earlier were for another subscriber */
	__u64 next_hop;   /* its link-layer address, in the first six bytes */
	__u64 source;     /* the interface's */
	__u32 ifindex;
	__u16 family;
	__u16 mtu_bytes;
	__u32 addresses_sum; /* of both addresses, as bpf_csum_diff computes it */
	__u32 ports_sum;
	__be16 local_port_be;
	__be16 remote_port_be;
	__u32 reserved;
	__u8 local[16]; /* IPv4 in the first four bytes */
	__u8 remote[16];
};
_Static_assert(sizeof(struct relay_slot) == 88, "relay_slot");

/* What a slot gets of a track. User space writes `layers` last, and after it has set it to zero writes
 * the rest.
 */
struct relay_selection {
	__u32 layers; /* the number of them, from the base on */
	__u32 epoch;  /* another one with each subscription */
	__u64 join;   /* the lowest frame at which the relay may begin to send the track */
};
_Static_assert(sizeof(struct relay_selection) == 16, "relay_selection");

struct relay_rate {
	__u64 bytes_per_second; /* 0 = there is no limit; at most 2^31 */
	__u64 depth_bytes;
};

#define RELAY_TOTAL 8 /* the index of the bucket of all levels */
#define RELAY_LONGEST_PAUSE_NS 8000000000ULL

struct relay_budget {
	struct relay_rate rates[RELAY_BUCKETS];
	__s64 floors[RELAY_LEVELS]; /* the bytes that must be left when an object begins */
	__u32 least_priority;
	__u32 share; /* of the groups, or packets that decode alone, that are sent of this priority, in 1/256 */
};
_Static_assert(sizeof(struct relay_budget) == 216, "relay_budget");

/* ---- written by the program ---- */

/* What became of a packet. */
enum relay_reason {
	RELAY_FORWARDED = 0, /* it is new, and went to the subscribers that its object is served to */
	RELAY_PASSED,	     /* not media: it went to the socket */
	/* dropped before the hop tag was verified */
	RELAY_NO_UPSTREAM,
	RELAY_MALFORMED,
	RELAY_TRUNCATED,
	RELAY_OVERSIZE,
	RELAY_HEADER,
	RELAY_HOP_KEY,
	RELAY_TAG,
	/* dropped, from an upstream */
	RELAY_NO_TRACK,
	RELAY_TOO_MANY_PACKETS,
	RELAY_CONTRADICTION,
	RELAY_CONTENDED,
	RELAY_NO_ROOM,
	RELAY_NOT_SPLIT,
	/* not forwarded, but of interest to user space */
	RELAY_DUPLICATE,
	RELAY_OUTDATED,
	/* lost to user space: packets of which the kernel had no memory for a copy, and records that found
	 * their ring full
	 */
	RELAY_LOST_COPIES,
	RELAY_LOST_ARRIVALS,
	RELAY_LOST_REGISTRATIONS,
	RELAY_REASONS,
};

/* Whether a slot is served an object. */
enum relay_verdict {
	SLOT_SERVED = 0,
	SLOT_BEFORE_JOIN,
	SLOT_EXPIRED,
	SLOT_NOT_SELECTED,
	SLOT_BROKEN,
	SLOT_PRIORITY,
	SLOT_TOKENS,
	SLOT_LIMIT,
	SLOT_THINNED,
	RELAY_VERDICTS,
};

/* Why a packet of an object that is served to a slot was not sent. */
enum relay_loss {
	LOSS_EXPIRED = 0, /* the slot */
	LOSS_NO_ROUTE,
	LOSS_TOO_BIG,	  /* for the interface */
	LOSS_NO_CHECKSUM, /* it came without over IPv4, and IPv6 demands one */
	LOSS_DEVICE,	  /* the kernel could not clone it, or its device dropped it */
	LOSS_THINNED,	  /* it decodes alone, and is not in the share of the slot */
	RELAY_LOSSES,
};

/* Bytes that may be sent: what was granted less what was spent. The latter only rises, so that every
 * CPU, and user space, can spend without a lock.
 */
struct relay_bucket {
	__u64 granted;
	__u64 spent;
	__u64 filled_ns; /* the time up to which bytes have been granted */
};

/* What a slot was sent. */
struct relay_account {
	struct relay_bucket buckets[RELAY_BUCKETS];
	__u64 packets;
	__u64 lost[RELAY_LOSSES];      /* packets */
	__u64 objects[RELAY_VERDICTS]; /* that began */
};
_Static_assert(sizeof(struct relay_account) == 344, "relay_account");

/* The state of a subscription: where it begins, and what the slot cannot decode because something that
 * it depends on was not served.
 */
struct relay_subscription {
	__u32 epoch; /* of the selection that this belongs to */
	struct relay_missing missing; /* what was not served */
	__u64 joined; /* the frame from which on the slot is sent the track */
};
_Static_assert(sizeof(struct relay_subscription) == 48, "relay_subscription");

/* The names of the objects of a track that are remembered, and the order in which they began. */
struct relay_ring {
	__u32 busy; /* a lock, held while an object is found or begun */
	__u32 next; /* the position of the next object */
	__u64 begun; /* the number of objects that have begun */
	__u64 newest; /* the highest frame of them */
	__u64 forgotten; /* the highest object that was forgotten: its frame, */
	__u32 forgotten_layer; /* and its layer + 1 */
	__u32 reserved;
	__u64 frames[RELAY_OBJECTS];
	__u8 layers[RELAY_OBJECTS]; /* the layer + 1; 0 = no object */
};
_Static_assert(sizeof(struct relay_ring) == 616, "relay_ring");

/* An object of which a packet has arrived. */
struct relay_object {
	__u64 begun_ns;
	__u64 newest_ns;
	__u64 bytes; /* of its datagrams */
	__u32 alias;
	__u16 packets;
	__u16 count;   /* 0 = not known */
	__u16 highest; /* index */
	__u8 priority;
	__u8 registered;
	__u32 reserved;
	__u64 served[RELAY_WORDS];
	__u64 dropped[RELAY_WORDS];
	__u64 seen[RELAY_PACKETS / 64];
};
_Static_assert(sizeof(struct relay_object) == 40 + 256 + 1024, "relay_object");

/* The record of an object: one when it has begun, one when it was complete or had to make room. An
 * object of one packet has the second one only.
 */
struct relay_registration {
	__u64 frame;
	__u64 begun_ns;
	__u64 newest_ns;
	__u64 bytes;
	__u32 alias;
	__u32 track;
	__u16 packets;
	__u16 count;
	__u8 layer;
	__u8 priority;
	__u8 ended;
	__u8 reserved;
	__u64 served[RELAY_WORDS];
	__u64 dropped[RELAY_WORDS];
};
_Static_assert(sizeof(struct relay_registration) == 48 + 256, "relay_registration");

/* The record of a packet, or of a train of packets of one object. */
struct relay_arrival {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u64 frame;
	__u32 upstream;
	__u16 bytes;   /* of all datagrams; all but the last have `stride` */
	__u16 stride;
	__u16 index;   /* of the first packet */
	__u16 packets;
	__u8 track;
	__u8 layer;
	__u8 ecn;
	__u8 reason; /* enum relay_reason */
};
_Static_assert(sizeof(struct relay_arrival) == 32, "relay_arrival");

#endif

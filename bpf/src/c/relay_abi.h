/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Types and constants that the relay's programs share with user space, see docs/design/relay.md.
 * core/relay is the executable specification of what is decided with them.
 */
#ifndef HAWSER_RELAY_ABI_H
#define HAWSER_RELAY_ABI_H

#include "abi.h"

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

/* The upstream at the other end, and the keys of its hop tags: two during a rotation. */
struct relay_upstream {
	struct siphash_key keys[2];
	__be16 hops_be[2];  /* the numbers of the keys */
	__u8 keys_valid;    /* bit i = keys[i] */
	__u8 reserved[3];
	__u32 number;
	__u32 reserved1;
};
_Static_assert(sizeof(struct relay_upstream) == 48, "relay_upstream");

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

/* The key that packets for subscribers are tagged with. User space writes the one that is not in
 * use, and then `flags`.
 */
struct relay_track {
	struct siphash_key hops[2];
	__be16 hops_be[2]; /* the numbers of the keys */
	__u32 flags;
	__u64 subscribers[RELAY_WORDS];
};
_Static_assert(sizeof(struct relay_track) == 168, "relay_track");

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
	/* trains, whose packets are counted when they come back one by one */
	RELAY_SPLIT,
	RELAY_REASONS,
};

/* Why a packet of an object that is served to a slot was not sent. */
enum relay_loss {
	LOSS_EXPIRED = 0, /* the slot */
	LOSS_NO_ROUTE,
	LOSS_TOO_BIG,	  /* for the interface */
	LOSS_NO_CHECKSUM, /* it came without over IPv4, and IPv6 demands one */
	LOSS_DEVICE,	  /* the kernel could not clone it, or its device dropped it */
	RELAY_LOSSES,
};

/* What a slot was sent. */
struct relay_account {
	__u64 packets;
	__u64 lost[RELAY_LOSSES]; /* packets */
};

#endif

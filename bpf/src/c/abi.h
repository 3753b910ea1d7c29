/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Everything that the programs share with user space. Rust sees these types through the generated skeletons. */
#ifndef HAWSER_ABI_H
#define HAWSER_ABI_H

#include <linux/types.h>

#define MAX_PATHS 8
#define MAX_FLOWS 1024
#define MAX_RULES 16 /* flows that share one destination prefix */

/* The shim of docs/design/wire.md. Fields are in network byte order, the tag is the eight bytes that SipHash emits. */
#define SHIM_VERSION 2
#define SHIM_TAGGED 0x1
#define SHIM_KEY_SLOT 0x2
#define SHIM_WHOLE 0x4 /* the tag covers every byte of the inner packet */

struct shim {
	__u8 version_flags;
	__u8 path;
	__u8 paths;
	__u8 epoch;
	__be16 flow_be;
	__be16 sent_high_be; /* of the send time, bits 32 to 47 */
	__be64 sequence_be;
	__be32 sent_low_be;
	__u8 tag[8];
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct shim) == 28, "the shim is 28 bytes");

#define SHIM_TAGGED_BYTES 20

struct siphash_key {
	__u64 k0;
	__u64 k1;
};

/* Of one direction between two nodes, derived from the key that they share. */
struct shim_keys {
	struct siphash_key seal;   /* of tags */
	struct siphash_key digest; /* of whole packets */
};

/* SipHash while it runs. */
struct siphash_state {
	__u64 v0, v1, v2, v3;
};

/* In front of what the sender's first program hands to those of the paths, which write the outer headers over it. A
 * transparent copy has the first four bytes in place of its Ethernet header, an encapsulated one all of it and then the
 * shim.
 */
struct handover {
	__u8 kind;
	__u8 sealed_bytes;
	__u16 flow;                /* the sender's table index */
	__u32 inner_sum;           /* of the inner packet for the UDP checksum, zero when it is not known */
	struct siphash_state seal; /* of the tag, over everything but the shim's first word */
};
_Static_assert(sizeof(struct handover) == 40, "smaller than the outer headers over IPv4");

#define HANDOVER_TRANSPARENT 0x10
#define HANDOVER_ENCAPSULATED 0x11

/* ---- sending ---- */

/* Key of the selector trie: an IPv6 prefix, or an IPv4 prefix mapped into ::ffff:0:0/96. */
struct selector_key {
	__u32 prefix_bits;
	__u8 address[16];
};

#define RULE_PORTS 0x1		   /* it is for some ports only, or for packets with ports */
#define RULE_SOURCE_PORTS 0x2	   /* it is for some source ports only */
#define RULE_SERVICES 0x4	   /* it is for some destination ports only or for a narrow prefix: name servers are meant too */

/* Protocol 0 matches everything; ports are in host byte order, ranges inclusive. */
struct rule {
	__u16 flow;
	__u8 protocol;
	__u8 flags;
	__u16 source_min, source_max;
	__u16 destination_min, destination_max;
};
_Static_assert(sizeof(struct rule) == 12, "no padding in a rule");

/* The first matching rule wins. A selector is replaced as a whole. */
struct selector {
	__u8 count;
	__u8 left_alone; /* why packets to the prefix are of no flow, an enum reason; 0 = the rules say which they are of */
	__u8 is_ipv6;    /* the prefix is none of IPv4, whose addresses are in ::/0 too as they stand in the trie */
	__u8 reserved;
	struct rule rules[MAX_RULES];
};
_Static_assert(sizeof(struct selector) == 4 + MAX_RULES * sizeof(struct rule), "no padding in a selector");

/* What is decided per packet from one aligned word, which user space and the signal program replace while packets fly.
 * Both do so by compare-and-exchange, so that the newest policy stays.
 */
struct policy {
	__u8 code;        /* bit i = path index i; 0x00 off, 0xff stop */
	__u8 probes;      /* paths that one packet in 2^probe_shift takes as well */
	__u8 probe_shift; /* 0 = nothing is probed */
	__u8 reserved;
	__u32 epoch; /* the newer policy has the greater one; its low byte is in the shim */
};
_Static_assert(sizeof(struct policy) == 8, "a policy is one word");

#define PROBE_SHIFT_MAX 15

#define ROUTE_OUTER_IPV6 0x1 /* one of the paths has an IPv6 outer header */

/* What follows from the paths of a code as they are now. */
struct route {
	__u16 inner_mtu_bytes; /* largest packet that fits every path encapsulated; 0 = there is no path */
	__u16 path_mtu_bytes;  /* the same for one to which nothing is added */
	__u8 paths;            /* those of the code that are there */
	__u8 flags;
	__u8 reserved[2];
};
_Static_assert(sizeof(struct route) == 8, "a route is written with one store");

#define FLOW_TRANSPARENT 0x1
#define FLOW_TAGGED 0x2
#define FLOW_KEY_SLOT 0x4
#define FLOW_WHOLE 0x8

/* User space may replace a row while packets fly: the sequence number is kept elsewhere. */
struct tx_flow {
	struct shim_keys keys[2];
	__u16 flow; /* the receiver's number for this flow */
	__u8 flags;
	__u8 configured;
	__u8 reserved[4];
};
_Static_assert(sizeof(struct tx_flow) == 72, "tx_flow");

struct tx_path {
	__u32 ifindex;
	__u16 family; /* AF_INET or AF_INET6 of the outer header; 0 = path not configured */
	__be16 port_be;
	__u8 local[16]; /* IPv4 in the first four bytes */
	__u8 remote[16];
	struct {
		__u8 next_hop[6];
		__u8 source[6];
	} macs; /* as an Ethernet header begins */
	__u32 reserved;
};
_Static_assert(sizeof(struct tx_path) == 56, "tx_path");

/* Whom the node itself talks to: what it is managed by and measures its paths with. */
struct endpoint {
	__u8 address[16]; /* IPv4 mapped */
	__u16 port;	  /* host byte order */
	__u8 protocol;
	__u8 reserved;
};
_Static_assert(sizeof(struct endpoint) == 20, "no padding in an endpoint");

#define MANAGEMENT_PORTS 8

/* TCP ports of this node that it is managed by; 0 = none. */
struct management {
	__u16 ports[MANAGEMENT_PORTS];
};
_Static_assert(sizeof(struct management) == 16, "management");

struct tx_stats {
	__u64 packets; /* of the flow, or copies on a path */
	__u64 bytes;   /* of inner packets */
};

/* The uplink of packets that a device which leads nowhere does not replicate. */
struct fallback {
	__u32 ifindex;
	__u32 family; /* of the next hop */
	__u8 next_hop[16];
};

struct fallback_stats {
	__u64 taken;
	__u64 dropped; /* no uplink was known */
};

/* ---- signals ---- */

/* The payload of an in-band signal, see docs/design/wire.md. It is tagged as a shim is, and no tagged shim begins so. */
#define SIGNAL_VERSION 0x10
#define SIGNAL_POLICY 1

struct signal {
	__u8 version;
	__u8 kind;
	__u8 code;
	__u8 probes;
	__u8 probe_shift;
	__u8 reserved;
	__be16 flow_be;
	__be64 sent_us_be; /* since 1970 */
	__be32 epoch_be;
	__u8 tag[8];
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct signal) == 28, "as long as the shim");
_Static_assert(__builtin_offsetof(struct signal, tag) == SHIM_TAGGED_BYTES, "the same bytes are tagged");

#define SIGNAL_WITHIN_US 2000000ULL
#define REFUSALS_EVERY_NS 100000000ULL /* records of refusals are this far apart */

struct signal_settings {
	struct siphash_key key;
	__be16 port_be;
	__u8 reserved[6];
};
_Static_assert(sizeof(struct signal_settings) == 24, "signal_settings");

enum signal_outcome {
	SIGNAL_ACCEPTED = 0,
	SIGNAL_MALFORMED,
	SIGNAL_TAG,
	SIGNAL_FLOW,
	SIGNAL_AGE,
	SIGNAL_EPOCH,
	SIGNAL_CODE,
	SIGNAL_OUTCOMES,
};

struct signal_event {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u32 epoch;
	__u16 flow;
	__u8 code;
	__u8 outcome;
};
_Static_assert(sizeof(struct signal_event) == 16, "signal_event");

/* ---- watching ---- */

/* Which packets of a flow are requests, by the bytes behind their TCP or UDP header. */
struct watch_flow {
	__u16 bytes_min, bytes_max;
	__u8 configured;
	__u8 reserved[3];
};
_Static_assert(sizeof(struct watch_flow) == 8, "watch_flow");

/* Of the latest request over TCP, as one word. */
struct watch_latest {
	__u32 connection; /* a hash of addresses and ports; 0 = there was none */
	__u32 end;        /* the sequence number behind the request */
};
_Static_assert(sizeof(struct watch_latest) == 8, "watch_latest");

struct watch_stats {
	__u64 requests;
	__u64 ends;            /* packets with FIN or RST */
	__u64 retransmissions; /* requests that were left out: they had been seen */
	__u64 others;          /* packets of the flow that are neither */
	__u64 lost;            /* records that found the ring full */
};
_Static_assert(sizeof(struct watch_stats) == 40, "watch_stats");

struct request {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u32 sequence;
	__u16 flow;
	__u16 bytes;
	__u8 flags; /* of TCP */
	__u8 reserved[7];
};
_Static_assert(sizeof(struct request) == 24, "request");

/* ---- receiving ---- */

#define WINDOW_SLOTS 4096
#define WINDOW_SLOT_BITS 32 /* sequence numbers a slot covers */
#define LATE_EPOCHS 16

/* One slot: {epoch in the high half, bitmap in the low half}. core/dedup is the executable specification. */
struct window {
	__u64 slots[WINDOW_SLOTS];
	__u64 newest_sent_us;  /* the newest send time of a tagged packet */
	__u64 newest_sequence; /* of that packet */
	__u64 expected_us;     /* when it came, or would have come without the delay that its age is; 0 = there was none */
};

/* Copies of transparent flows that were seen, by fingerprint of the packet. */
#define SEEN_SLOTS 65536

struct seen {
	__u64 slots[SEEN_SLOTS];
};

struct rx_flow {
	struct shim_keys keys[2];
	__u8 keys_valid; /* bit i = keys[i]; 0 = untagged packets are accepted */
	__u8 configured;
	__u8 demands_whole; /* tags that do not cover the whole packet are refused */
	__u8 reserved[5];
};
_Static_assert(sizeof(struct rx_flow) == 72, "rx_flow");

struct rx_path {
	__u16 family; /* 0 = path not configured */
	__u16 reserved;
	__u8 local[16]; /* the address that replicas on this path are sent to */
};
_Static_assert(sizeof(struct rx_path) == 20, "rx_path");

/* Per flow and path, on every CPU. */
struct rx_stats {
	__u64 packets; /* copies that arrived with a valid shim and tag */
	__u64 bytes;   /* of inner packets */
	__u64 first;   /* accepted because no other copy had arrived; late, reset and contended ones among them */
	__u64 duplicates;
	__u64 late;      /* untagged and accepted although older than the window */
	__u64 reset;     /* accepted because the session was unknown or jumped */
	__u64 contended; /* accepted because two CPUs raced too often */
	__u64 tag_failures;
	__u64 outdated; /* tagged and dropped: older than the window remembers, or of a session that was left */
	__u64 expired;  /* tagged and dropped: sent too long ago */
};
_Static_assert(sizeof(struct rx_stats) == 80, "rx_stats");

enum verdict {
	VERDICT_FIRST = 0,
	VERDICT_DUPLICATE = 1,
	VERDICT_LATE = 2,
	VERDICT_RESET = 3,
	VERDICT_CONTENDED = 4,
	VERDICT_OUTDATED = 5,
	VERDICT_EXPIRED = 6,
};

/* One copy that arrived. */
struct arrival {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u64 sequence;
	__u32 sent_us; /* the low bits */
	__u16 flow;
	__u16 inner_bytes;
	__u8 path;
	__u8 paths;
	__u8 epoch;
	__u8 verdict;
	__u32 reserved;
};
_Static_assert(sizeof(struct arrival) == 32, "two arrivals in a cache line");

#define ARRIVALS 65536

/* One ring per CPU: the program on that CPU is its only writer, user space its only reader. Counts never wrap. */
struct arrivals {
	__u64 written;
	__u64 overflowed; /* arrivals that found the ring full */
	__u8 reserved0[48];
	__u64 read; /* user space writes this one */
	__u8 reserved1[56];
	struct arrival records[ARRIVALS];
};
_Static_assert(sizeof(struct arrivals) == 128 + 32 * ARRIVALS, "arrivals");

/* ---- both ---- */

/* Why a frame was not replicated, not deduplicated or not passed on. */
enum reason {
	/* handed to the kernel's own forwarding */
	PASSED_OVERSIZE = 0,
	PASSED_FRAGMENT,
	PASSED_TTL,
	PASSED_VLAN,
	PASSED_MALFORMED,
	PASSED_NOT_IDENTIFIABLE,
	PASSED_SEGMENTS,
	PASSED_NO_ROOM,
	PASSED_NO_PATH,
	PASSED_UNKNOWN_VERSION,
	PASSED_OUTER_FRAGMENT,
	PASSED_NOT_ADDRESSED,
	/* dropped */
	DROPPED_UNKNOWN_FLOW,
	DROPPED_TAG,
	DROPPED_MALFORMED,
	DROPPED_ECN,
	DROPPED_PATH_NOT_CONFIGURED,
	DROPPED_NO_ROOM,
	DROPPED_CLONE_FAILED,
	/* of a flow by its selector, but the node's own or its link's: handed to the kernel */
	PASSED_LOCAL,
	PASSED_NOT_UNICAST,
	PASSED_LINK_LOCAL,
	PASSED_FOREIGN_MAC,
	PASSED_REPLICA,
	PASSED_MANAGEMENT,
	DROPPED_NOT_WHOLE,
	DROPPED_OUTDATED,
	DROPPED_EXPIRED,
	REASONS,
};

#endif

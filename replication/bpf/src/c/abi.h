/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Types and constants that the programs share with user space. Rust sees them through the generated
 * skeletons: constants that it needs are enums, because those are in BTF.
 */
#ifndef HAWSER_ABI_H
#define HAWSER_ABI_H

#include <linux/types.h>

#include "siphash_abi.h"

enum limit {
	MAX_PATHS = 8,
	MAX_FLOWS = 1024,
	MAX_RULES = 16,       /* flows that share one destination prefix */
	MANAGEMENT_PORTS = 8, /* of one node */
	PROBE_SHIFT_MAX = 15, /* at least one packet in 2^15 is a probe */
};

/* The shim of docs/design/wire.md. Fields are in network byte order; the tag is SipHash's eight
 * output bytes.
 */
#define SHIM_VERSION 2

/* Of replication/shim's echo, which the agents exchange on the replicas' port too. */
#define ECHO_VERSION 1
#define ECHO_REQUEST 0
#define ECHO_BYTES 20
#define SHIM_TAGGED 0x1
#define SHIM_KEY_SLOT 0x2
#define SHIM_WHOLE 0x4 /* the tag covers every byte of the inner packet */

struct shim {
	__u8 version_flags;
	__u8 path;
	__u8 paths;
	__u8 epoch;
	__be16 flow_be;
	__be16 sent_high_be; /* bits 32 to 47 of the send time */
	__be64 sequence_be;
	__be32 sent_low_be;
	__u8 tag[8];
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct shim) == 28, "the shim is 28 bytes");

#define SHIM_TAGGED_BYTES 20

/* The keys of one direction between two nodes, derived from their shared key. */
struct shim_keys {
	struct siphash_key seal;   /* for tags */
	struct siphash_key digest; /* for digests of whole packets */
};

/* The metadata that the sender's first program puts in front of a packet for the paths' programs,
 * which overwrite it with the outer headers. In a transparent copy, the first four bytes replace
 * the start of the Ethernet header; in an encapsulated copy, all of it comes first and the shim
 * follows.
 */
struct handover {
	__u8 kind;
	__u8 sealed_bytes;
	__u16 flow;                /* the sender's table index */
	__u32 inner_sum;           /* of the inner packet, for the UDP checksum; zero if unknown */
	struct siphash_state seal; /* hash of the tag, without the shim's first word */
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

enum rule_flag {
	RULE_PORTS = 0x1,	 /* has a range of ports, or requires ports */
	RULE_SOURCE_PORTS = 0x2, /* has a range of source ports */
	RULE_SERVICES = 0x4,	 /* includes name servers and DHCP */
};

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
	__u8 left_alone; /* enum reason, if packets to the prefix are excluded; 0 = apply the rules */
	__u8 is_ipv6;    /* the prefix matches IPv6 only; ::/0 would contain mapped IPv4 too */
	__u8 is_of_peer; /* packets to the prefix are for a peer, and counted if no rule matches them */
	struct rule rules[MAX_RULES];
};
_Static_assert(sizeof(struct selector) == 4 + MAX_RULES * sizeof(struct rule), "no padding in a selector");

/* A flow's policy, one aligned word, which user space and the signal program replace concurrently.
 * Both do so by compare-and-exchange, so that the newest policy stays.
 */
struct policy {
	__u8 code;        /* bit i = path index i; 0x00 off, 0xff stop */
	__u8 probes;      /* paths that one packet in 2^probe_shift takes in addition */
	__u8 probe_shift; /* 0 = nothing is probed */
	__u8 reserved;
	__u32 epoch; /* a newer policy has a greater epoch; its low byte is in the shim */
};
_Static_assert(sizeof(struct policy) == 8, "a policy is one word");

enum route_flag {
	ROUTE_OUTER_IPV6 = 0x1, /* one of the paths has an IPv6 outer header */
	ROUTE_CLONED = 0x2,	/* the device of one of the paths takes no frames from XDP: copies are clones, made at TC */
};

/* The route of a policy code, derived from the currently configured paths. */
struct route {
	__u16 inner_mtu_bytes; /* largest packet that fits every path encapsulated; 0 = no path */
	__u16 path_mtu_bytes;  /* largest packet that fits every path unencapsulated */
	__u8 paths;            /* the configured paths of the code */
	__u8 flags;
	__u8 ipv6_paths; /* those of them with an IPv6 outer header */
	__u8 reserved;
};
_Static_assert(sizeof(struct route) == 8, "a route is written with one store");

enum flow_flag {
	FLOW_TRANSPARENT = 0x1,
	FLOW_TAGGED = 0x2,
	FLOW_KEY_SLOT = 0x4,
	FLOW_WHOLE = 0x8,
};

/* User space may replace a row while traffic flows: the sequence number is in another map. */
struct tx_flow {
	struct shim_keys keys[2];
	__u16 flow; /* the receiver's number for this flow */
	__u8 flags;
	__u8 configured;
	__u8 reserved[4];
};
_Static_assert(sizeof(struct tx_flow) == 72, "tx_flow");

enum path_flag {
	PATH_UNCHECKED = 0x1, /* copies have no UDP checksum over IPv6 either */
};

struct tx_path {
	__u32 ifindex;
	__u8 family; /* AF_INET or AF_INET6 of the outer header; 0 = path not configured */
	__u8 flags;  /* PATH_UNCHECKED */
	__be16 port_be;
	__u8 local[16]; /* IPv4 in the first four bytes */
	__u8 remote[16];
	struct {
		__u8 next_hop[6];
		__u8 source[6];
	} macs; /* in the order of an Ethernet header */
	__u16 mtu_bytes;       /* largest packet that fits the path */
	__u16 inner_mtu_bytes; /* largest packet that fits it with the outer headers */
};
_Static_assert(sizeof(struct tx_path) == 56, "tx_path");

/* A device whose transit traffic is replicated at TC. */
struct transit {
	__u32 entry;	  /* ifindex of the entry of the device's loop */
	__u32 behind_xdp; /* an XDP program on the device replicates where all copies can be frames */
};

/* The device that the packets in a loop belong to. */
struct loop_device {
	__u32 ifindex;
	__u32 is_transit; /* they arrived on it; otherwise they were routed to it */
	__u32 behind_xdp; /* an XDP program at the exit replicates where all copies can be frames */
};

/* Packets to a destination of flows that matched none of them. */
struct missed {
	__u64 packets;
	__u8 destination[16];	/* of the last one; IPv4 mapped */
	__u16 destination_port; /* host byte order; 0 if there is none */
	__u8 protocol;
	__u8 reserved[5];
};
_Static_assert(sizeof(struct missed) == 32, "missed");

/* A remote endpoint of the node's own traffic: management services and path measurements. */
struct endpoint {
	__u8 address[16]; /* IPv4 mapped */
	__u16 port;	  /* host byte order */
	__u8 protocol;
	__u8 reserved;
};
_Static_assert(sizeof(struct endpoint) == 20, "no padding in an endpoint");

/* TCP ports of this node's management services; 0 = none. */
struct management {
	__u16 ports[MANAGEMENT_PORTS];
};
_Static_assert(sizeof(struct management) == 16, "management");

struct tx_stats {
	__u64 packets; /* packets of the flow, or copies on a path */
	__u64 bytes;   /* bytes of inner packets */
};

/* The uplink of packets that are routed to a device without a link and not replicated there. */
struct fallback {
	__u32 ifindex;
	__u32 family; /* address family of the next hop */
	__u8 next_hop[16];
};

struct fallback_stats {
	__u64 taken;
	__u64 dropped; /* no uplink was known */
};

/* ---- signals ---- */

/* The payload of an in-band signal, see docs/design/wire.md. It is tagged like a shim; no tagged
 * shim begins with this version.
 */
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
	__be64 sent_us_be; /* microseconds since 1970 */
	__be32 epoch_be;
	__u8 tag[8];
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct signal) == 28, "as long as the shim");
_Static_assert(__builtin_offsetof(struct signal, tag) == SHIM_TAGGED_BYTES, "the same bytes are tagged");

#define SIGNAL_WITHIN_US 2000000ULL
#define REJECTIONS_EVERY_NS 100000000ULL /* minimum time between records of rejected signals */

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

/* The size range of requests, in bytes after the TCP or UDP header. */
struct watch_flow {
	__u16 bytes_min, bytes_max;
	__u8 configured;
	__u8 reserved[3];
};
_Static_assert(sizeof(struct watch_flow) == 8, "watch_flow");

/* The latest request over TCP, as one word. */
struct watch_latest {
	__u32 connection; /* a hash of addresses and ports; 0 = no request yet */
	__u32 end;        /* the sequence number after the request */
};
_Static_assert(sizeof(struct watch_latest) == 8, "watch_latest");

struct watch_stats {
	__u64 requests;
	__u64 ends;            /* packets with FIN or RST */
	__u64 retransmissions; /* requests that were not recorded because they had been seen */
	__u64 others;          /* all other packets of the flow */
	__u64 lost;            /* records that found the ring full */
};
_Static_assert(sizeof(struct watch_stats) == 40, "watch_stats");

struct request {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u32 sequence;
	__u16 flow;
	__u16 bytes;
	__u8 flags; /* TCP flags */
	__u8 reserved[7];
};
_Static_assert(sizeof(struct request) == 24, "request");

/* ---- receiving ---- */

#define WINDOW_SLOTS 4096
#define WINDOW_SLOT_BITS 32 /* sequence numbers a slot covers */
#define LATE_EPOCHS 16

/* One slot: {epoch in the high half, bitmap in the low half}. replication/dedup is the executable
 * specification.
 */
struct window {
	__u64 slots[WINDOW_SLOTS];
	__u64 newest_sent_us;  /* the newest send time of a tagged packet */
	__u64 newest_sequence; /* of that packet */
	__u64 expected_us;     /* its arrival time less its excess delay; 0 = no packet yet */
};

/* Copies of transparent flows seen so far, by fingerprint of the packet. */
#define SEEN_SLOTS 65536

struct seen {
	__u64 slots[SEEN_SLOTS];
};

struct rx_flow {
	struct shim_keys keys[2];
	__u8 keys_valid; /* bit i = keys[i]; 0 = untagged packets are accepted */
	__u8 configured;
	__u8 demands_whole; /* tags that do not cover the whole packet are rejected */
	__u8 reserved[5];
};
_Static_assert(sizeof(struct rx_flow) == 72, "rx_flow");

struct rx_path {
	__u16 family; /* 0 = path not configured */
	__u16 reserved;
	__u8 local[16]; /* the address that replicas on this path are sent to */
};
_Static_assert(sizeof(struct rx_path) == 20, "rx_path");

struct rx_destination {
	__u16 family; /* 0 = no packet yet */
	__u16 reserved;
	__u8 address[16];
};
_Static_assert(sizeof(struct rx_destination) == 20, "rx_destination");

/* An echo request that arrived at the replicas' port. */
struct seen_echo {
	__u16 family;
	__u16 reserved;
	__u8 local[16];
	__u8 remote[16];
	__u8 bytes[ECHO_BYTES];
};
_Static_assert(sizeof(struct seen_echo) == 56, "seen_echo");

/* The last of them, whether authentic or not; request i is in echoes[i % SEEN_ECHOES]. */
#define SEEN_ECHOES 256

struct seen_echoes {
	__u64 count;
	struct seen_echo echoes[SEEN_ECHOES];
};

/* Counters per flow and path, on every CPU. */
struct rx_stats {
	__u64 packets; /* copies that arrived with a valid shim and tag */
	__u64 bytes;   /* bytes of inner packets */
	__u64 first;   /* accepted as the first copy; includes late, reset and contended ones */
	__u64 duplicates; /* dropped because another copy had arrived */
	__u64 late;      /* untagged, accepted although older than the window */
	__u64 reset;     /* accepted because the session was unknown or the number jumped */
	__u64 contended; /* accepted because two CPUs raced too often */
	__u64 tag_failures;
	__u64 outdated; /* tagged, dropped: older than the window, or of an ended session */
	__u64 expired;  /* tagged, dropped: sent too long ago */
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

/* The arrival of one copy. */
struct arrival {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u64 sequence;
	__u32 sent_us; /* low 32 bits of the send time */
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

/* One ring per CPU: the program on that CPU is the only writer, user space the only reader. Counts
 * never wrap.
 */
struct arrivals {
	__u64 written;
	__u64 overflowed; /* arrivals that found the ring full */
	__u8 reserved0[48];
	__u64 read; /* written by user space */
	__u8 reserved1[56];
	struct arrival records[ARRIVALS];
};
_Static_assert(sizeof(struct arrivals) == 128 + 32 * ARRIVALS, "arrivals");

/* ---- sending and receiving ---- */

/* The reason that a frame was not replicated, not deduplicated or not passed on. */
enum reason {
	/* passed to the kernel */
	PASSED_OVERSIZE = 0,
	PASSED_FRAGMENT,
	PASSED_TTL,
	PASSED_VLAN,
	PASSED_MALFORMED,
	PASSED_NOT_IDENTIFIABLE,
	PASSED_GSO,
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
	/* selected, but excluded by addresses or purpose: passed to the kernel */
	PASSED_LOCAL,
	PASSED_NOT_UNICAST,
	PASSED_LINK_LOCAL,
	PASSED_FOREIGN_MAC,
	PASSED_REPLICA,
	PASSED_MANAGEMENT,
	DROPPED_PARTIAL_TAG,
	DROPPED_OUTDATED,
	DROPPED_EXPIRED,
	DROPPED_BY_QUEUE,
	/* selected, but excluded by what hides the protocol: passed to the kernel */
	PASSED_EXTENSIONS,
	/* the kernel does not change the size of such a packet */
	PASSED_REFUSED,
	DROPPED_REFUSED,
	REASONS,
};

#endif

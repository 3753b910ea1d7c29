/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The protocol and the ports of IPv6 packets with extension headers. */
#ifndef HAWSER_EXTENSIONS_H
#define HAWSER_EXTENSIONS_H

#include "parse.h"

/* The context of the including program, and how it reads bytes. */
#ifndef CONTEXT
#define CONTEXT struct xdp_md
#endif
#ifndef LOAD_BYTES
#define LOAD_BYTES bpf_xdp_load_bytes
#endif

#define EXTENSIONS_MAX 8
#define EXTENSIONS_OFFSET_MAX 0xffff

struct extension {
	__u8 next;
	__u8 length; /* in units of the header's kind */
};

/* Where the headers end. */
struct transport {
	__u32 offset;
	__u8 protocol; /* an extension header if there are too many, or one is cut off */
	__u8 is_fragment;
	__u8 reserved[2];
};

/* Skips extension headers, the first of which is `protocol` at `offset`. Stops after that of a
 * fragment. The verifier checks a global function once, separately from its callers.
 */
__noinline int skip_extensions(CONTEXT *ctx, struct transport *transport)
{
	if (!transport)
		return 0;
	for (__u32 i = 0; i < EXTENSIONS_MAX && is_extension(transport->protocol); i++) {
		struct extension header;
		__u32 bytes;

		if (transport->offset > EXTENSIONS_OFFSET_MAX ||
		    LOAD_BYTES(ctx, transport->offset, &header, sizeof(header)))
			return 0;
		if (transport->protocol == IPPROTO_FRAGMENT)
			bytes = 8;
		else if (transport->protocol == IPPROTO_AH)
			bytes = (header.length + 2) * 4;
		else
			bytes = (header.length + 1) * 8;
		transport->is_fragment = transport->protocol == IPPROTO_FRAGMENT;
		transport->offset += bytes;
		transport->protocol = header.next;
		if (transport->is_fragment)
			return 0;
	}
	return 0;
}

/* Replaces the protocol of a packet in [Ethernet | packet] with the one behind its extension headers,
 * and finds the ports.
 */
static __always_inline void find_transport(CONTEXT *ctx, struct packet *packet)
{
	struct transport transport = {
		.offset = sizeof(struct ethhdr) + sizeof(struct ipv6hdr),
		.protocol = packet->protocol,
	};
	__be16 ports[2];

	if (likely(!packet->is_ipv6 || packet->is_fragment || !is_extension(packet->protocol)))
		return;
	skip_extensions(ctx, &transport);
	packet->protocol = transport.protocol;
	packet->is_fragment = transport.is_fragment;
	if (packet->is_fragment || (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP))
		return;
	if (transport.offset > EXTENSIONS_OFFSET_MAX || LOAD_BYTES(ctx, transport.offset, ports, sizeof(ports)))
		return;
	packet->source_port = bpf_ntohs(ports[0]);
	packet->destination_port = bpf_ntohs(ports[1]);
}

#endif

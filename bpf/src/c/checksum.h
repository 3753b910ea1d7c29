/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The UDP checksum over IPv6, which must not be zero (RFC 8200, section 8.1), and incremental updates (RFC 1624). */
#ifndef HAWSER_CHECKSUM_H
#define HAWSER_CHECKSUM_H

#include "parse.h"

#define CHECKSUM_BLOCK 128
#define CHECKSUM_BLOCKS 72 /* 9,216 bytes: a jumbo frame */

/* The sum of [at, end) added to `sum`, not folded. */
static __always_inline __u64 sum_bytes(__u64 sum, void *at, void *end)
{
	__u32 i;

	for (i = 0; i < CHECKSUM_BLOCKS && at + CHECKSUM_BLOCK <= end; i++, at += CHECKSUM_BLOCK)
		sum += (__u32)bpf_csum_diff(NULL, 0, at, CHECKSUM_BLOCK, 0);
	for (i = 0; i < CHECKSUM_BLOCK / 4 && at + 4 <= end; i++, at += 4)
		sum += *(__u32 *)at;
	if (at + 2 <= end) {
		sum += *(__u16 *)at;
		at += 2;
	}
	if (at + 1 <= end)
		sum += *(__u8 *)at;
	return sum;
}

static __always_inline __u64 sum_pseudo_header(const struct ipv6hdr *ip)
{
	const __u32 *words = (const __u32 *)&ip->saddr;
	__u64 sum = ip->payload_len;

	for (int i = 0; i < 8; i++)
		sum += words[i];
	return sum + bpf_htons(IPPROTO_UDP);
}

static __always_inline void decrement_ttl(struct iphdr *ip)
{
	__u32 check = ip->check;

	check += bpf_htons(0x0100);
	ip->check = (check & 0xffff) + (check >> 16);
	ip->ttl--;
}

static __always_inline void replace_tos(struct iphdr *ip, __u8 tos)
{
	__u16 *first_word = (void *)ip;
	__u32 sum = (__u16)~ip->check + (__u16)~*first_word;

	ip->tos = tos;
	sum += *first_word;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
}

#endif

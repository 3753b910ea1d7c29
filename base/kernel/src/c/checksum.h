/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The UDP checksum over IPv6, which must not be zero (RFC 8200, section 8.1), and incremental
 * updates (RFC 1624).
 */
#ifndef HAWSER_CHECKSUM_H
#define HAWSER_CHECKSUM_H

#include "parse.h"

#define LARGE_BLOCK 512 /* the maximum of bpf_csum_diff */
#define LARGE_BLOCKS 18 /* 9,216 bytes: a jumbo frame */
#define SMALL_BLOCK 64

/* Returns the sum of [at, end) added to `sum`, not folded. */
static __always_inline __u64 sum_bytes(__u64 sum, void *at, void *end)
{
	__u32 i;

	for (i = 0; i < LARGE_BLOCKS && at + LARGE_BLOCK <= end; i++, at += LARGE_BLOCK)
		sum += (__u32)bpf_csum_diff(NULL, 0, at, LARGE_BLOCK, 0);
	for (i = 0; i < LARGE_BLOCK / SMALL_BLOCK && at + SMALL_BLOCK <= end; i++, at += SMALL_BLOCK)
		sum += (__u32)bpf_csum_diff(NULL, 0, at, SMALL_BLOCK, 0);
	for (i = 0; i < SMALL_BLOCK / 4 && at + 4 <= end; i++, at += 4)
		sum += *(__u32 *)at;
	if (at + 2 <= end) {
		sum += *(__u16 *)at;
		at += 2;
	}
	if (at + 1 <= end)
		sum += *(__u8 *)at;
	return sum;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u64 sum_words(__u64 sum, const void *at, __u32 words)
{
	for (__u32 i = 0; i < words; i++)
		sum += ((const __u32 *)at)[i];
	return sum;
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

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Bitmaps of slots and of packets, and shares of groups. */
#ifndef HAWSER_RELAY_BITS_H
#define HAWSER_RELAY_BITS_H

#include "parse.h"

/* Returns the number of zeros below the lowest bit of a word that is not zero. Clang 14 cannot compile
 * __builtin_ctzll for this machine.
 */
static __always_inline __u32 trailing_zeros(__u64 word)
{
	__u64 ones = (word & -word) - 1;

	ones -= ones >> 1 & 0x5555555555555555ULL;
	ones = (ones & 0x3333333333333333ULL) + (ones >> 2 & 0x3333333333333333ULL);
	ones = (ones + (ones >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return ones * 0x0101010101010101ULL >> 56;
}

/* Returns those of the bits from `start` up to `end` of a bitmap that are in its word `index`. */
static __always_inline __u64 bits_in_word(__u32 start, __u32 end, __u32 index)
{
	__u32 base = index * 64;
	__u32 low = start > base ? start - base : 0;
	__u32 high = end > base ? end - base : 0;

	if (high > 64)
		high = 64;
	if (low >= high)
		return 0;
	return ~0ULL >> (64 - (high - low)) << (low & 63);
}

/* Returns whether a number is in a share, in 1/256: whether its lowest eight bits in reverse order are below
 * it, which spreads the share evenly.
 */
static __always_inline bool is_in_share(__u32 number, __u32 share)
{
	number = (number & 0x0f) << 4 | (number & 0xf0) >> 4;
	number = (number & 0x33) << 2 | (number & 0xcc) >> 2;
	number = (number & 0x55) << 1 | (number & 0xaa) >> 1;
	return number < share;
}

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* SipHash-2-4 with 64-bit output (Aumasson, Bernstein 2012) over the 20 bytes of the shim in front of its tag. */
#ifndef HAWSER_SIPHASH_H
#define HAWSER_SIPHASH_H

#include "parse.h"

#define ROTATE_LEFT(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

#define SIPROUND(v0, v1, v2, v3)                                                                                       \
	do {                                                                                                           \
		v0 += v1;                                                                                              \
		v1 = ROTATE_LEFT(v1, 13) ^ v0;                                                                         \
		v0 = ROTATE_LEFT(v0, 32);                                                                              \
		v2 += v3;                                                                                              \
		v3 = ROTATE_LEFT(v3, 16) ^ v2;                                                                         \
		v0 += v3;                                                                                              \
		v3 = ROTATE_LEFT(v3, 21) ^ v0;                                                                         \
		v2 += v1;                                                                                              \
		v1 = ROTATE_LEFT(v1, 17) ^ v2;                                                                         \
		v2 = ROTATE_LEFT(v2, 32);                                                                              \
	} while (0)

#define SIPHASH_BLOCK(v0, v1, v2, v3, word)                                                                            \
	do {                                                                                                           \
		v3 ^= (word);                                                                                          \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		v0 ^= (word);                                                                                          \
	} while (0)

#define SIPHASH_START(v0, v1, v2, v3, k0, k1)                                                                          \
	do {                                                                                                           \
		v0 = (k0) ^ 0x736f6d6570736575ULL;                                                                     \
		v1 = (k1) ^ 0x646f72616e646f6dULL;                                                                     \
		v2 = (k0) ^ 0x6c7967656e657261ULL;                                                                     \
		v3 = (k1) ^ 0x7465646279746573ULL;                                                                     \
	} while (0)

/* Leaves the state; the hash is v0 ^ v1 ^ v2 ^ v3. */
#define SIPHASH_FINISH(v0, v1, v2, v3)                                                                                 \
	do {                                                                                                           \
		v2 ^= 0xff;                                                                                            \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
	} while (0)

/* The tag of a shim, as it lies in memory; the arguments are the bytes before it, as they lie there. */
static __always_inline __u64 shim_tag(__u64 first, __u64 second, __u32 rest, const struct siphash_key *key)
{
	__u64 v0, v1, v2, v3, last;

	_Static_assert(SHIM_TAGGED_BYTES == 20, "two words and a half");
	last = rest | (__u64)SHIM_TAGGED_BYTES << 56;
	SIPHASH_START(v0, v1, v2, v3, key->k0, key->k1);
	SIPHASH_BLOCK(v0, v1, v2, v3, first);
	SIPHASH_BLOCK(v0, v1, v2, v3, second);
	SIPHASH_BLOCK(v0, v1, v2, v3, last);
	SIPHASH_FINISH(v0, v1, v2, v3);
	return v0 ^ v1 ^ v2 ^ v3;
}

#endif

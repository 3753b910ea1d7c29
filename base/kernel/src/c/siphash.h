/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* SipHash-2-4 with 64-bit output (Aumasson, Bernstein 2012). */
#ifndef HAWSER_SIPHASH_H
#define HAWSER_SIPHASH_H

#include "parse.h"
#include "siphash_abi.h"

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

/* SipHash-1-3: fewer rounds, for long inputs. */
#define SIPHASH_SHORT_BLOCK(v0, v1, v2, v3, word)                                                                      \
	do {                                                                                                           \
		const __u64 block = (word);                                                                            \
		v3 ^= block;                                                                                           \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		v0 ^= block;                                                                                           \
	} while (0)

#define SIPHASH_SHORT_FINISH(v0, v1, v2, v3)                                                                           \
	do {                                                                                                           \
		v2 ^= 0xff;                                                                                            \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
	} while (0)

#define SIPHASH_START(v0, v1, v2, v3, k0, k1)                                                                          \
	do {                                                                                                           \
		v0 = (k0) ^ 0x736f6d6570736575ULL;                                                                     \
		v1 = (k1) ^ 0x646f72616e646f6dULL;                                                                     \
		v2 = (k0) ^ 0x6c7967656e657261ULL;                                                                     \
		v3 = (k1) ^ 0x7465646279746573ULL;                                                                     \
	} while (0)

/* Finishes the state; the hash is v0 ^ v1 ^ v2 ^ v3. */
#define SIPHASH_FINISH(v0, v1, v2, v3)                                                                                 \
	do {                                                                                                           \
		v2 ^= 0xff;                                                                                            \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
		SIPROUND(v0, v1, v2, v3);                                                                              \
	} while (0)

static __always_inline struct siphash_state siphash_start(const struct siphash_key *key)
{
	struct siphash_state state;

	SIPHASH_START(state.v0, state.v1, state.v2, state.v3, key->k0, key->k1);
	return state;
}

static __always_inline void siphash_add(struct siphash_state *state, __u64 word)
{
	SIPHASH_BLOCK(state->v0, state->v1, state->v2, state->v3, word);
}

/* `last` has the remaining bytes and, in its highest byte, the length of the message. */
static __always_inline __u64 siphash_end(struct siphash_state state, __u64 last)
{
	siphash_add(&state, last);
	SIPHASH_FINISH(state.v0, state.v1, state.v2, state.v3);
	return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

#endif

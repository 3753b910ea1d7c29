/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The keyed digest of a whole packet, for tags that cover all of it. */
#ifndef HAWSER_DIGEST_H
#define HAWSER_DIGEST_H

#include "parse.h"

#include "siphash.h"

/* The context of the including program. */
#ifndef CONTEXT
#define CONTEXT struct xdp_md
#endif

#define DIGEST_BYTES_MAX 4096 /* above the size of a redirected frame, which fits a page */
#define DIGEST_OFFSET_MAX 128
#define DIGEST_BLOCK 32
#define DIGEST_BLOCKS_MASK (2 * DIGEST_BYTES_MAX - DIGEST_BLOCK)

/* Returns SipHash-1-3 of the packet at [offset, offset + bytes); zero if that range is not within
 * the frame. The verifier checks a global function once, separately from its callers.
 */
__noinline __u64 digest_of_packet(CONTEXT *ctx, __u32 offset, __u32 bytes, __u64 k0, __u64 k1)
{
	void *end = (void *)(long)ctx->data_end, *at = (void *)(long)ctx->data;
	struct siphash_key key = { k0, k1 };
	struct siphash_state state = siphash_start(&key);
	__u64 last = (__u64)bytes << 56;
	__u32 blocks, shift = 0;

	if (offset > DIGEST_OFFSET_MAX || bytes > DIGEST_BYTES_MAX)
		return 0;
	at += offset;
	blocks = bytes & DIGEST_BLOCKS_MASK;
	for (__u32 i = 0; i < DIGEST_BYTES_MAX && i < blocks; i += DIGEST_BLOCK, at += DIGEST_BLOCK) {
		const __u64 *words = WORDS(at);

		if (at + DIGEST_BLOCK > end)
			return 0;
		for (int word = 0; word < DIGEST_BLOCK / 8; word++)
			SIPHASH_SHORT_BLOCK(state.v0, state.v1, state.v2, state.v3, words[word]);
	}
	/* Recomputed from a value that the loop has not compared, so that the verifier need not
	 * follow each of its exits.
	 */
	barrier_var(bytes);
	blocks = bytes & DIGEST_BLOCKS_MASK;
	at = (void *)(long)ctx->data + offset;
	at += blocks;
	for (__u32 word = 8; word < DIGEST_BLOCK; word += 8, at += 8) {
		if ((bytes & (DIGEST_BLOCK - 8)) < word)
			break;
		if (at + 8 > end)
			return 0;
		SIPHASH_SHORT_BLOCK(state.v0, state.v1, state.v2, state.v3, *(const __u64 *)WORDS(at));
	}
	for (__u32 part = 4; part; part /= 2) {
		if (!(bytes & part))
			continue;
		if (at + part > end)
			return 0;
		last |= (__u64)(part == 4   ? *(const __u32 *)WORDS(at)
				: part == 2 ? *(const __u16 *)WORDS(at)
					    : *(const __u8 *)at)
			<< shift;
		at += part;
		shift += 8 * part;
	}
	SIPHASH_SHORT_BLOCK(state.v0, state.v1, state.v2, state.v3, last);
	SIPHASH_SHORT_FINISH(state.v0, state.v1, state.v2, state.v3);
	return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

#endif

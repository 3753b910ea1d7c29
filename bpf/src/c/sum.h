/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The sum of a packet, in a program whose context is CONTEXT. */
#ifndef HAWSER_SUM_H
#define HAWSER_SUM_H

#include "checksum.h"

#ifndef CONTEXT
#define CONTEXT struct xdp_md
#endif

#define SUM_OFFSET_MAX 256

/* Returns the folded sum of the frame from `offset` on; zero if the frame ends before. The verifier
 * checks a global function once, separately from its callers.
 */
__noinline __u32 sum_from(CONTEXT *ctx, __u32 offset)
{
	if (offset > SUM_OFFSET_MAX)
		return 0;
	return fold(sum_bytes(0, (void *)(long)ctx->data + offset, (void *)(long)ctx->data_end));
}

#endif

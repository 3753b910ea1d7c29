/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Types of SipHash that the programs share with user space. */
#ifndef HAWSER_SIPHASH_ABI_H
#define HAWSER_SIPHASH_ABI_H

#include <linux/types.h>

struct siphash_key {
	__u64 k0;
	__u64 k1;
};

/* The running state of SipHash. */
struct siphash_state {
	__u64 v0, v1, v2, v3;
};

#endif

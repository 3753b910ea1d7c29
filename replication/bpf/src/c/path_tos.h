/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Transparent replicas carry their path in the DSCP, from the pool for local use (RFC 2474, section
 * 6). ECN is unchanged.
 */
#ifndef HAWSER_PATH_TOS_H
#define HAWSER_PATH_TOS_H

#include "abi.h"
#include "parse.h"

#define PATH_DSCP_MASK 0x23
#define PATH_DSCP 0x23 /* 0b1ppp11 */

static __always_inline __u8 path_tos(__u32 path, __u8 tos)
{
	return (PATH_DSCP | path << 2) << 2 | (tos & ECN_MASK);
}

static __always_inline bool names_path(__u8 tos)
{
	return (tos >> 2 & PATH_DSCP_MASK) == PATH_DSCP;
}

static __always_inline __u32 path_of_tos(__u8 tos)
{
	return tos >> 4 & (MAX_PATHS - 1);
}

#endif
